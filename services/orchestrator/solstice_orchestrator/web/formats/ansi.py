"""Render a job's output, with terminal colours and progress lines, as safe HTML rows. Pure.

Obeys ECMA-48 for the shape of control sequences and its SGR, with the 256-colour and RGB forms of ITU-T T.416 in both
spellings (`38;5;n`, `38:2::r:g:b`). RGB is shown in the nearest of the 256 colours, because the Content-Security-Policy
allows classes but no inline styles. Cursor movements, titles, links and all other sequences are dropped.
"""

# ruff: noqa: PLR2004  the numbers are those of the specification

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from typing import Final, NamedTuple

MAX_LINE: Final = 16_384
"""The most characters of a line. An endless one would stall a browser."""

_TOKEN: Final = re.compile(
    r"""
      (?P<text>[^\x00-\x08\x0a-\x1f\x7f-\x9f]+)
    | (?P<control>[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f])
    | \x1b\[(?P<csi>[0-?]{0,64})[ -/]{0,8}(?P<final>[@-~])
    | \x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\|(?=\n)|(?=\x1b[^\\]))
    | \x1b[ -/]{1,8}[0-~]
    | \x1b[0-OQ-WYZ\\`-~]
    """,
    re.VERBOSE,
)
_UNFINISHED: Final = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b\n]{0,4096}\x1b?|[ -/]{0,8})?\Z"
)
"""An incomplete control sequence."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""A control character other than tabulator and line feed."""

_FLAGS: Final = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 8: "hidden", 9: "strike"}
_ON: Final = {**{code: frozenset({name}) for code, name in _FLAGS.items()}, 21: frozenset({"underline"})}
_OFF: Final = {
    22: frozenset({"bold", "dim"}),
    23: frozenset({"italic"}),
    24: frozenset({"underline"}),
    27: frozenset({"inverse"}),
    28: frozenset({"hidden"}),
    29: frozenset({"strike"}),
}
_CUBE: Final = (0, 95, 135, 175, 215, 255)
_SIXTEEN: Final = (
    *("#5c6370", "#f47067", "#6bc46d", "#daaa3f", "#6cb6ff", "#dcbdfb", "#56d4dd", "#cdd3dc"),
    *("#8b949e", "#ff938a", "#8ddb8c", "#eac55f", "#96d0ff", "#eedcff", "#8ee6ee", "#ffffff"),
)
"""The first sixteen foreground colours, legible on the dark panel of the log."""
_BEHIND: Final = (
    *("#0b0d11", "#a3362f", "#216c2d", "#7a5c08", "#2d5ea6", "#7a49a3", "#1b6a73", "#565e6b"),
    *("#3f4650", "#a33a34", "#266c30", "#775b0d", "#315fa2", "#774a9d", "#206770", "#575f6b"),
)
"""The first sixteen background colours, legible behind the text.

Behind black text, the bright ones above are taken.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStyle:
    """The style of characters; colours are indices into the 256, None is the panel's own."""

    foreground: int | None = None
    background: int | None = None
    flags: frozenset[str] = frozenset()

    def classes(self) -> str:
        """Return the CSS classes of this style; empty for plain."""
        # Black is shown as grey on the dark panel, but as black on a coloured background.
        is_black = self.foreground == 0 and self.background is not None
        front = None if self.foreground is None else "f-panel" if is_black else f"f{self.foreground}"
        back = None if self.background is None else f"b{self.background}"
        if "inverse" in self.flags:
            front = "f-panel" if self.background is None else f"f{self.background}"
            back = "b-panel" if self.foreground is None else f"b{self.foreground}"
        return " ".join(part for part in (front, back, *sorted(self.flags - {"inverse"})) if part)


PLAIN: Final = TextStyle()


class LogRow(NamedTuple):
    """A row of the log; `number` counts the job's lines from 1, None for marks."""

    number: int | None
    pieces: tuple[tuple[TextStyle, str], ...]

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    @property
    def html(self) -> str:
        """Spans of escaped text, made only on request.

        Most rows of a long log are never shown.
        """
        return "".join(_span(style, text) for style, text in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsUpdate:
    """Rows that replace all rows from index `first` on.

    The last of them may change again.
    """

    first: int
    rows: Sequence[LogRow]


@dataclass(slots=True)
class Terminal:
    """Takes text in pieces of any size, and returns the changed rows on request."""

    newest: int | None = None
    """How many of the newest lines `take` returns at least; earlier ones may be counted alone. None: all."""
    _unfinished: str = ""
    """The beginning of an incomplete control sequence."""
    _style: TextStyle = PLAIN
    _line: list[tuple[TextStyle, str]] = field(default_factory=list)
    _width: int = 0
    _returned: bool = False
    """A carriage return came. The next character begins the line again, a line feed ends it unchanged."""
    _shown: bool = False
    """Whether `take` has returned the open line."""
    _number: int = 1
    _first: int = 0
    _done: list[LogRow] = field(default_factory=list)

    def feed(self, text: str) -> None:
        """Take the next piece of text."""
        text, self._unfinished = self._unfinished + text, ""
        lines = text.replace("\r\n", "\n")
        if _CONTROL.search(lines):
            self._feed_tokens(text)
        else:
            self._feed_lines(lines)

    def _feed_lines(self, text: str) -> None:
        """Take text without control characters: a job may print millions of short lines."""
        *lines, last = text.split("\n")
        if self.newest is not None and len(lines) > self.newest + 1 and max(map(len, lines)) <= MAX_LINE:
            # The first line may continue the open one.
            self._feed_line(lines[0])
            self._drop(len(lines) - 1 - self.newest)
            lines = lines[-self.newest :]
        for line in lines:
            self._feed_line(line)
        if last:
            self._write(last)

    def _feed_line(self, line: str) -> None:
        if line:
            self._write(line)
        self._end_line()

    def _drop(self, lines: int) -> None:
        """Leave out all rows up to here, and so many lines after them."""
        self._number += lines
        self._first += len(self._done) + lines
        self._done.clear()

    def _feed_tokens(self, text: str) -> None:
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                if _UNFINISHED.match(text, position):
                    self._unfinished = text[position:]
                    return
                position += 1  # a lone escape character has no meaning
                continue
            position = token.end()
            match token.lastgroup:
                case "text":
                    self._write(token["text"])
                case "control":
                    self._control(token["control"])
                case "final":
                    self._command(token["csi"], token["final"])
                case _:
                    pass

    def remark(self, text: str) -> None:
        """Add a mark as a row between the job's lines."""
        self._unfinished = ""
        if self._line or self._shown:
            self._end_line()
        self._returned = False
        self._done.append(LogRow(None, ((PLAIN, text),)))

    @property
    def line_is_open(self) -> bool:
        """Whether the last returned row may still change."""
        return self._shown

    def take(self) -> RowsUpdate | None:
        """Return the rows changed since the last call; None when none did."""
        rows, first = self._done, self._first
        self._done, self._first = [], first + len(rows)
        if self.newest is not None and len(rows) > self.newest:
            first += len(rows) - self.newest
            rows = rows[-self.newest :]
        if self._line or self._shown:
            # Returned again at every call, changed or not: callers call this after feeding text.
            rows.append(self._open_row())
            self._shown = True
        return RowsUpdate(first=first, rows=rows) if rows else None

    def _write(self, text: str) -> None:
        if self._returned:
            self._erase()
        while text:
            room = MAX_LINE - self._width
            piece, text = text[:room], text[room:]
            if self._line and (self._line[-1][0] is self._style or self._line[-1][0] == self._style):
                self._line[-1] = (self._style, self._line[-1][1] + piece)
            elif piece:
                self._line.append((self._style, piece))
            self._width += len(piece)
            if text:
                self._end_line()

    def _control(self, character: str) -> None:
        match character:
            case "\n":
                self._end_line()
            case "\r":
                self._returned = True
            case "\b" if self._line:
                style, text = self._line.pop()
                if text[:-1]:
                    self._line.append((style, text[:-1]))
                self._width -= 1
            case _:
                pass

    def _command(self, parameters: str, final: str) -> None:
        if final == "m" and not parameters.startswith(("<", "=", ">", "?")):
            self._style = restyled(self._style, parameters)
        elif final == "K" and (parameters in {"1", "2"} or (self._returned and parameters in {"", "0"})):
            self._erase()

    def _erase(self) -> None:
        self._line.clear()
        self._width, self._returned = 0, False

    def _end_line(self) -> None:
        self._done.append(self._open_row())
        self._number += 1
        self._shown = False
        self._erase()

    def _open_row(self) -> LogRow:
        return LogRow(self._number, tuple(self._line))


def _span(style: TextStyle, text: str) -> str:
    classes = style.classes()
    return f'<span class="{classes}">{escape(text)}</span>' if classes else escape(text)


@lru_cache(maxsize=4096)
def restyled(style: TextStyle, parameters: str) -> TextStyle:
    """Return `style` after an SGR sequence; unknown parameters change nothing."""
    codes = iter(parameters.split(";"))
    for code in codes:
        first, *parts = (int(part) if part.isdecimal() and part.isascii() else 0 for part in code.split(":"))
        if first in {38, 48}:
            colour = _colour(
                iter(parts if parts[0] == 5 else [parts[0], *parts[-3:]]) if parts else _integers(codes)
            )
            if colour is not None:
                style = _coloured(style, colour, front=first == 38)
        else:
            style = _simple(style, 24 if first == 4 and parts[:1] == [0] else first)
    return style


def _simple(style: TextStyle, code: int) -> TextStyle:
    match code:
        case 0:
            return PLAIN
        case _ if code in _ON or code in _OFF:
            flags = style.flags - _OFF.get(code, frozenset()) | _ON.get(code, frozenset())
            return TextStyle(foreground=style.foreground, background=style.background, flags=flags)
        case 39 | 49:
            return _coloured(style, None, front=code == 39)
        case _ if 30 <= code <= 37 or 40 <= code <= 47:
            return _coloured(style, code % 10, front=code < 40)
        case _ if 90 <= code <= 97 or 100 <= code <= 107:
            return _coloured(style, code % 10 + 8, front=code < 100)
        case _:
            return style


def _coloured(style: TextStyle, colour: int | None, *, front: bool) -> TextStyle:
    if front:
        return TextStyle(foreground=colour, background=style.background, flags=style.flags)
    return TextStyle(foreground=style.foreground, background=colour, flags=style.flags)


def _integers(codes: Iterator[str]) -> Iterator[int]:
    return (int(code) if code.isdecimal() and code.isascii() else 0 for code in codes)


def _colour(parameters: Iterator[int]) -> int | None:
    """Read the colour that follows 38 or 48: `5;n` or `2;r;g;b`."""
    match next(parameters, None):
        case 5:
            index = next(parameters, 256)
            return index if index < 256 else None
        case 2:
            red, green, blue = (min(next(parameters, 0), 255) for _ in range(3))
            return nearest(red, green, blue)
        case _:
            return None


def nearest(red: int, green: int, blue: int) -> int:
    """Return the nearest of the colours from 16 to 255.

    Every terminal draws the first sixteen differently.
    """

    def distance(index: int) -> int:
        r, g, b = rgb(index)
        return (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2

    steps = [_CUBE.index(min(_CUBE, key=lambda level: abs(level - part))) for part in (red, green, blue)]
    cube = 16 + 36 * steps[0] + 6 * steps[1] + steps[2]
    grey = 232 + max(0, min(23, round(((red + green + blue) / 3 - 8) / 10)))
    return min((cube, grey), key=distance)


def rgb(index: int) -> tuple[int, int, int]:
    """Return xterm's RGB value of a colour from 16 to 255.

    These are a cube of 6 x 6 x 6, then 24 greys.
    """
    if index >= 232:
        level = 8 + 10 * (index - 232)
        return level, level, level
    cell = index - 16
    return _CUBE[cell // 36], _CUBE[cell // 6 % 6], _CUBE[cell % 6]


def palette_css() -> str:
    """Return the style sheet of the classes `f0` ... `f255` and `b0` ... `b255`."""
    others = ["#{:02x}{:02x}{:02x}".format(*rgb(index)) for index in range(16, 256)]
    pairs = list(zip([*_SIXTEEN, *others], [*_BEHIND, *others], strict=True))
    rules = [
        *(f".f{i}{{color:{front}}}.b{i}{{background-color:{back}}}" for i, (front, back) in enumerate(pairs)),
        *(f".f-panel.b{i}{{background-color:{front}}}" for i, (front, _) in enumerate(pairs[:16])),
    ]
    return "\n".join(rules) + "\n"
