"""Removes control sequences other than colours from a job's output. Pure.

A log may come from untrusted code; it must not set titles, move the cursor over other text, show text in
another order, or send keyboard input. ECMA-48 defines the form of control sequences.
"""

import re
from typing import Final

MAX_UNFINISHED: Final = 4096
"""The longest beginning of a sequence that is held back; no legitimate one is longer."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL: Final = re.compile(
    r"""
      \x1b\[[0-?]*[ -/]*[@-~]                   # control sequences, colours among them
    | \x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)   # titles, links, device control
    | \x1b[ -/]*[0-~]                           # other escape sequences
    | [\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]     # single controls, except for tab, line feed and carriage return
    | [\u200e\u200f\u202a-\u202e\u2066-\u2069]   # what turns the direction of text (Unicode UAX #9)
    """,
    re.VERBOSE,
)
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")


class HarmlessText:
    """A filter of text in pieces, cut anywhere, for what a terminal may show."""

    def __init__(self) -> None:
        self._unfinished = ""

    def feed(self, text: str) -> str:
        """Take the next piece.

        The beginning of a sequence is held back until its end has come.
        """
        text, self._unfinished = self._unfinished + text, ""
        unfinished = _UNFINISHED.search(text, max(0, len(text) - MAX_UNFINISHED))
        if unfinished:
            text, self._unfinished = text[: unfinished.start()], unfinished.group()
        return _CONTROL.sub(_colour_only, text)


def without_controls(text: str) -> str:
    """Return a whole text without control sequences, colours included; tabs and line breaks stay."""
    return _CONTROL.sub("", _UNFINISHED.sub("", text)).replace("\x1b", "")


def _colour_only(control: "re.Match[str]") -> str:
    return control.group() if _COLOUR.fullmatch(control.group()) else ""
