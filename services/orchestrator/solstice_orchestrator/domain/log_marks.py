"""Log lines that the orchestrator writes, not the job. Pure."""

from typing import Final, Self

STEP: Final = b"$ "
"""How the mark of a step begins."""
END_OF_SERVICE: Final = b"$ the end of what the service "
"""How the mark begins below which the last lines of a service stand, behind all steps."""


class LogMark(bytes):
    """A whole log line of the orchestrator; no output of a job has this type."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the mark with this text."""
        return cls(f"{text}\n".encode())
