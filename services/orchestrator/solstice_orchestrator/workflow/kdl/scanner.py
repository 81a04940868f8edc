"""Scan KDL 2 by the grammar of kdl.dev/spec (2.0.0), keeping all positions.

Where the specification and ckdl differ, the stricter rule holds: white space before `{` after a word and before `/-`,
no line break within a type. Own limits: nesting of 32, numbers of 64 characters, 20,000 nodes and values, no vertical
tab (the two differ on whether it is a line break).
"""

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.workflow.kdl.nodes import KdlNode, KdlProperty, KdlScalar, KdlValue, SourcePosition
from solstice_orchestrator.workflow.kdl.strings import NEWLINE, SPACE, KdlSyntaxError, read_string
from solstice_orchestrator.workflow.kdl.words import read_word

MAX_DEPTH: Final = 32
MAX_PARTS: Final = 20_000
"""Nodes, arguments and properties together; these are read in well under a second."""


def scan(text: str) -> tuple[KdlNode, ...]:
    """Scan the nodes of a document; InvalidWorkflow names line, column and problem."""
    return _Scanner(text.removeprefix("\ufeff")).document()


_WORD: Final = re.compile(rf'[^{SPACE}{NEWLINE}\\/(){{}};\[\]"=]+')
_SPACES: Final = re.compile(rf"[{SPACE}]+")
_NEWLINE: Final = re.compile(rf"\r\n|[{NEWLINE}]")
_LINE_COMMENT: Final = re.compile(rf"//[^{NEWLINE}]*")
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")
_FORBIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
_EDITOR_LINE: Final = re.compile(r"\r\n|\r|\n")
_VERSION_1: Final = re.compile(rf"/-[{SPACE}]*kdl-version[{SPACE}]+1[{SPACE}]*(?=[{NEWLINE}]|$)")
_RAW_1: Final = re.compile(r'r#*"')


@dataclass(slots=True, kw_only=True)
class _Parts:
    """The parts of a node read so far."""

    bare: bool
    """Whether the last part ended with a word, not with a quote or a brace."""
    block_seen: bool = False
    arguments: list[KdlValue] = field(default_factory=list)
    properties: list[KdlProperty] = field(default_factory=list)
    children: tuple[KdlNode, ...] | None = None


class _Scanner:
    """A recursive-descent parser of one text; `at` is the offset of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._parts = 0
        self._line_starts = [0, *(match.end() for match in _EDITOR_LINE.finditer(text))]

    def position(self, offset: int) -> SourcePosition:
        line = bisect_right(self._line_starts, offset)
        return SourcePosition(line=line, column=offset - self._line_starts[line - 1] + 1)

    def problem(self, offset: int, sentence: str) -> InvalidWorkflow:
        return self.position(min(offset, len(self.text))).problem(sentence)

    def document(self) -> tuple[KdlNode, ...]:
        forbidden = _FORBIDDEN.search(self.text)
        if forbidden:
            code = ord(forbidden.group())
            raise self.problem(
                forbidden.start(),
                f"the character U+{code:04X} may not stand in a KDL file; in a quoted string write \\u{{{code:x}}}",
            )
        if _VERSION_1.match(self.text):
            raise self.problem(0, "this file says that it is KDL 1; Solstice CI reads KDL 2")
        nodes = self._nodes(0)
        if self.at < len(self.text):
            raise self.problem(self.at, "this '}' closes nothing")
        return nodes

    # -- white space ----------------------------------------------------------------------------------------------

    def _sees(self, prefix: str) -> bool:
        return self.text.startswith(prefix, self.at)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def _node_space(self) -> bool:
        """Skip white space within a node; return whether there was any."""
        start = self.at
        while self._take(_SPACES) or self._block_comment() or self._continuation():
            pass
        return self.at > start

    def _comment_space(self) -> None:
        """Skip white space around a type, where ckdl allows no line continuation."""
        while self._take(_SPACES) or self._block_comment():
            pass

    def _line_space(self) -> None:
        """Skip white space between nodes."""
        while self._node_space() or self._take(_NEWLINE) or self._take(_LINE_COMMENT):
            pass

    def _block_comment(self) -> bool:
        if not self._sees("/*"):
            return False
        start, depth = self.at, 0
        while edge := _COMMENT_EDGE.search(self.text, self.at):
            self.at = edge.end()
            depth += 1 if edge.group() == "/*" else -1
            if depth == 0:
                return True
        raise self.problem(start, "this comment is never closed: '*/' is missing")

    def _continuation(self) -> bool:
        if not self._sees("\\"):
            return False
        start = self.at
        self.at += 1
        while self._take(_SPACES) or self._block_comment():
            pass
        self._take(_LINE_COMMENT)
        if self.at < len(self.text) and not self._take(_NEWLINE):
            raise self.problem(
                start, "after a '\\' outside of a string only a comment may follow on its line"
            )
        return True

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _nodes(self, depth: int) -> tuple[KdlNode, ...]:
        if depth > MAX_DEPTH:
            raise self.problem(self.at, f"blocks may be nested {MAX_DEPTH} deep, no deeper")
        nodes: list[KdlNode] = []
        while True:
            self._line_space()
            if self.at >= len(self.text) or self._sees("}"):
                return tuple(nodes)
            if self._sees(";"):
                self.at += 1
                continue
            slashdashed = self._slashdash()
            node = self._node(depth)
            if not slashdashed:
                nodes.append(node)

    def _slashdash(self) -> bool:
        """Skip `/-` and the white space after it; return whether it was there."""
        if not self._sees("/-"):
            return False
        start = self.at
        self.at += 2
        self._line_space()
        if self.at >= len(self.text) or self.text[self.at] in "};":
            raise self.problem(start, "this '/-' has nothing after it to take away")
        return True

    def _node(self, depth: int) -> KdlNode:
        annotation = self._annotation()
        start = self.at
        if self._sees("/-"):
            raise self.problem(start, "a second '/-' here has nothing to take away")
        name = self._text_value("the name of a node")
        parts = _Parts(bare=self._ends_bare(start))
        while True:
            spaced = self._node_space()
            if self._ends_node():
                return KdlNode(
                    name=name,
                    position=self.position(start),
                    annotation=annotation,
                    arguments=tuple(parts.arguments),
                    properties=tuple(parts.properties),
                    children=parts.children or (),
                )
            self._part(parts, depth, spaced=spaced)

    def _part(self, parts: "_Parts", depth: int, *, spaced: bool) -> None:
        """Read one argument, property or block of children; `/-` may remove it."""
        here = self.at
        slashdashed = self._sees("/-")
        if slashdashed and not spaced and not parts.block_seen:
            raise self.problem(here, "white space is needed before '/-'")
        self._slashdash()
        if self._sees("{"):
            if parts.bare and not spaced:
                raise self.problem(here, "white space is needed before '{'")
            if parts.children is not None and not slashdashed:
                raise self.problem(here, "a node has one block of children, this is its second")
            block = self._block(depth)
            parts.block_seen, parts.bare = True, False
            parts.children = parts.children if slashdashed else block
            return
        if parts.block_seen:
            raise self.problem(
                here, "after the block of children the node must end: with a new line, or with ';'"
            )
        if not spaced:
            raise self.problem(here, f"white space is needed before {self._shown(here)}")
        entry = self._entry()
        parts.bare = self._ends_bare(here)
        if slashdashed:
            return
        if isinstance(entry, KdlProperty):
            parts.properties.append(entry)
        else:
            parts.arguments.append(entry)

    def _ends_bare(self, start: int) -> bool:
        """Return whether the text from `start` to here ends with a word, not a quote."""
        return self.at > start and self.text[self.at - 1] not in '"#'

    def _ends_node(self) -> bool:
        if self.at >= len(self.text) or self._sees("}"):
            return True
        if self._sees(";"):
            self.at += 1
            return True
        return bool(self._take(_NEWLINE) or self._take(_LINE_COMMENT))

    def _block(self, depth: int) -> tuple[KdlNode, ...]:
        start = self.at
        self.at += 1
        nodes = self._nodes(depth + 1)
        if not self._sees("}"):
            raise self.problem(start, "this '{' is never closed: '}' is missing")
        self.at += 1
        return nodes

    # -- arguments and properties ---------------------------------------------------------------------------------

    def _entry(self) -> KdlValue | KdlProperty:
        start = self.at
        value = self._value()
        end = self.at
        self._node_space()
        if not self._sees("="):
            # White space belongs to the next part.
            self.at = end
            return value
        if not isinstance(value.value, str) or value.annotation is not None:
            raise self.problem(start, "the name of a property must be a plain string")
        self.at += 1
        self._node_space()
        return KdlProperty(name=value.value, position=value.position, value=self._value())

    def _value(self) -> KdlValue:
        position = self.position(self.at)
        annotation = self._annotation()
        start = self.at
        value = self._scalar("a value")
        return KdlValue(
            value=value, position=position, annotation=annotation, written=self.text[start : self.at]
        )

    def _annotation(self) -> str | None:
        if not self._sees("("):
            return None
        start = self.at
        self.at += 1
        self._comment_space()
        name = self._text_value("a type")
        self._comment_space()
        if not self._sees(")"):
            raise self.problem(start, "this '(' is never closed: ')' is missing after the type")
        self.at += 1
        self._comment_space()
        return name

    def _count(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise self.problem(self.at, f"a document may hold {MAX_PARTS} nodes and values, no more")

    def _text_value(self, what: str) -> str:
        start = self.at
        value = self._scalar(what)
        if not isinstance(value, str):
            raise self.problem(start, f"{what} must be a string, {self._shown(start)} is none")
        return value

    def _scalar(self, what: str) -> KdlScalar:
        self._count()
        start = self.at
        if _RAW_1.match(self.text, start):
            raise self.problem(start, 'r"..." is a raw string of KDL 1; in KDL 2 write #"..."#')
        try:
            quoted = read_string(self.text, start)
        except KdlSyntaxError as error:
            raise self.problem(error.offset, error.problem) from None
        if quoted:
            self.at = quoted.end
            return quoted.value
        word = self._take(_WORD)
        if not word:
            raise self.problem(start, f"{what} is expected here, not {self._shown(start)}")
        try:
            return read_word(word.group(), start)
        except KdlSyntaxError as error:
            raise self.problem(error.offset, error.problem) from None

    def _shown(self, offset: int) -> str:
        """Return the text at the offset, shortened for an error message."""
        if offset >= len(self.text):
            return "the end of the file"
        if _NEWLINE.match(self.text, offset):
            return "the end of the line"
        word = _WORD.match(self.text, offset)
        return repr((word.group() if word else self.text[offset])[:40])
