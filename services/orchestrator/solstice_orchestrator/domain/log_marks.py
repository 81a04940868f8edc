"""Lines of a log that the orchestrator writes. Pure."""

from typing import Self


class LogMark(bytes):
    """A whole line of ours for the log: nothing that a job prints can be one."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> Self:
        """The line that says so."""
        return cls(f"{text}\n".encode())
