"""What a job hands on, and what it gets of the jobs that it needs. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FILE_PLACE: Final = re.compile(r"\{file:([^{}]*)\}")
"""The place of a file's content in the text of an output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """A short text that a job gives to those that need it."""

    name: str
    """Unique in its job."""
    text: str | None = None
    """With a place for each file whose content belongs there (`FILE_PLACE`); None: its steps write it."""
    default: str | None = None
    """Where its steps may leave it out; None: they may not."""

    @property
    def files(self) -> Sequence[str]:
        """Paths of the files whose content it has."""
        return FILE_PLACE.findall(self.text or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededOutput:
    """An output that a job gets as a variable of its steps."""

    job: str
    """The name of the job that has it."""
    name: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedArtifact:
    """An artifact that an attempt has handed out."""

    name: str
    digest: str
    """SHA-256 of its archive, in hexadecimal digits."""
    size: int
    """Bytes of its archive."""
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededArtifact:
    """An artifact that a job gets before its first step."""

    job: str
    """The name of the job that hands it out."""
    name: str
    into: str = ""
    """The directory of the workspace in which its paths begin; empty: the workspace itself."""
