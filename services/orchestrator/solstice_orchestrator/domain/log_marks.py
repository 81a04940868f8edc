"""Log lines that the orchestrator writes, not the job. Pure."""

from typing import Self


class LogMark(bytes):
    """A whole log line of the orchestrator; no output of a job has this type."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the mark with this text."""
        return cls(f"{text}\n".encode())
