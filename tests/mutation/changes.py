"""Makes the mutants of a module: its source with one change each.

The changes are mutmut's list of operators, and one of ours: a condition becomes its negation. What no test is about
stays unchanged: annotations, decorators, docstrings, sentences (a string with a space in it), type aliases, and numbers
that have a name of their own.
"""

import difflib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

LEFT_ALONE: Final = frozenset({"len", "isinstance", "TypeVar", "cast", "NewType"})
"""Calls whose arguments stay unchanged.

mutmut does not change them either, or they only inform the type checker.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A module with one change."""

    module: str
    function: str | None
    """The outermost changed function, by its qualified name.

    None: the change acts when the module is imported.
    """
    first_line: int
    last_line: int
    """The last line of the changed statement."""
    was: str
    becomes: str
    """The lines that the change touched, without indentation."""
    source: str

    @property
    def diff(self) -> str:
        """The change, for people."""
        old, new = self.was.splitlines(), self.becomes.splitlines()
        return "\n".join(
            [
                f"  {self.module}:{self.first_line}",
                *(f"  - {line}" for line in old),
                *(f"  + {line}" for line in new),
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    node: cst.CSTNode
    mutated: cst.CSTNode
    kind: str
    function: str | None
    lines: tuple[int, int]


def negation(test: cst.BaseExpression) -> cst.BaseExpression | None:
    """The negation of a condition; None where its operators are changed anyway."""
    if isinstance(test, cst.Name | cst.Attribute | cst.Call | cst.NamedExpr):
        inner = (
            test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            if isinstance(test, cst.NamedExpr)
            else test
        )
        return cst.UnaryOperation(
            operator=cst.Not(), expression=inner, lpar=[cst.LeftParen()], rpar=[cst.RightParen()]
        )
    return None


def _conditions(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    if isinstance(node, cst.If | cst.While | cst.CompIf | cst.IfExp):
        negated = negation(node.test)
        if negated is not None:
            yield node.with_changes(test=negated)


def _first_string(node: cst.BaseString) -> Iterable[cst.CSTNode]:
    """Change a string once: a second change, to capitals, shows nothing new."""
    for kind, operator in mutation_operators:
        if kind is cst.BaseString:
            yield from islice(operator(node), 1)


OPERATORS: Final[Sequence[tuple[type, Callable[[Any], Iterable[cst.CSTNode]]]]] = (
    *((kind, operator) for kind, operator in mutation_operators if kind is not cst.BaseString),
    (cst.BaseString, _first_string),
    (cst.CSTNode, _conditions),
)


@dataclass
class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    sites: list[_Site] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    _depth: int = 0
    _lines: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._enter(node)
            return False
        if self._is_left_alone(node):
            return False
        header = isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement | cst.MatchCase)
        if header:
            place = self.get_metadata(PositionProvider, node)
            last = (
                place.end.line
                if isinstance(node, cst.SimpleStatementLine)
                else self._header_end(node, place.start.line)
            )
            self._lines.append((place.start.line, last))
        self._note(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(
            original_node, cst.SimpleStatementLine | cst.BaseCompoundStatement | cst.MatchCase
        ) and not isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._lines.pop()

    def _header_end(self, node: cst.CSTNode, first: int) -> int:
        body = getattr(node, "body", None)
        if body is None:
            return first
        return max(first, self.get_metadata(PositionProvider, body).start.line - 1)

    def _enter(self, node: cst.FunctionDef | cst.ClassDef) -> None:
        """Keep names, decorators and annotations, and the default values of functions."""
        self._names.append(node.name.value)
        self._depth += isinstance(node, cst.FunctionDef)
        node.body.visit(self)
        self._depth -= isinstance(node, cst.FunctionDef)
        self._names.pop()

    def _is_left_alone(self, node: cst.CSTNode) -> bool:
        match node:
            case (
                cst.Annotation()
                | cst.Decorator()
                | cst.Import()
                | cst.ImportFrom()
                | cst.ConcatenatedString()
                | cst.Assign(value=cst.Call(func=cst.Name(value="TypeVar" | "NewType")))
            ):
                return True
            case cst.Call(func=cst.Name(value=name)):
                return name in LEFT_ALONE
            case cst.SimpleString(value=text):
                return " " in text or "\\n" in text or text.startswith('"""')
            case cst.BaseNumber() | cst.BinaryOperation(left=cst.BaseNumber(), right=cst.BaseNumber()):
                return self._depth == 0
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]) if self._depth == 0:
                return name == "__all__" or (not name.isupper() and name.lstrip("_")[:1].isupper())
            case _:
                return False

    def _note(self, node: cst.CSTNode) -> None:
        function = None
        if self._depth:
            function = ".".join(self._names)
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                self.sites.extend(
                    _Site(
                        node=node,
                        mutated=mutated,
                        kind=type(node).__name__,
                        function=function,
                        lines=self._lines[-1] if self._lines else (1, 1),
                    )
                    for mutated in operator(node)
                )


def mutants(module: str, source: str, each: int | None = None, seed: int = 0) -> Sequence[Mutant]:
    """All mutants of a module, or `each` at random.

    Kinds of change take turns, so that arguments do not displace conditions.
    """
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = _Finder()
    wrapper.visit(finder)
    made = (_mutant(module, source, wrapper.module, site) for site in _lot(finder.sites, seed))
    reported = {mutant.source: mutant for mutant in islice((each for each in made if each is not None), each)}
    # What is in a function goes first: it is tried in milliseconds, what acts on import needs a process of its own.
    return sorted(reported.values(), key=lambda mutant: mutant.function is None)


def _lot(sites: Sequence[_Site], seed: int) -> Iterator[_Site]:
    by_kind: dict[str, list[_Site]] = defaultdict(list)
    for site in sites:
        by_kind[site.kind].append(site)
    lot = random.Random(seed)
    piles = [by_kind[kind] for kind in sorted(by_kind)]
    for pile in piles:
        lot.shuffle(pile)
    while piles:
        for pile in piles:
            yield pile.pop()
        piles = [pile for pile in piles if pile]


def _mutant(module: str, source: str, tree: cst.Module, site: _Site) -> Mutant | None:
    """The mutant; None: the change changes nothing, or is no Python."""
    changed = tree.deep_replace(site.node, site.mutated)
    text = changed.code if isinstance(changed, cst.Module) else source
    try:
        compile(text, module, "exec")
    except (SyntaxError, ValueError):
        return None
    old, new = _touched(source, text)
    if not old and not new:
        return None
    return Mutant(
        module=module,
        function=site.function,
        first_line=site.lines[0],
        last_line=site.lines[1],
        was=old,
        becomes=new,
        source=text,
    )


def _touched(source: str, text: str) -> tuple[str, str]:
    lines = list(difflib.unified_diff(source.splitlines(), text.splitlines(), n=0, lineterm=""))[2:]
    old = "\n".join(line[1:].strip() for line in lines if line.startswith("-"))
    new = "\n".join(line[1:].strip() for line in lines if line.startswith("+"))
    return old, new
