"""Log lines that the orchestrator writes, not the job. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final, Self

from solstice_orchestrator.domain.jobs import StepSpec

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


class StepMarks:
    """The marks of the steps, in order: each step is begun or left out, once."""

    def __init__(self, steps: Sequence[StepSpec], *, has_setup: bool = False) -> None:
        """`has_setup`: number 0 is a step of ours, which has no mark."""
        self._steps: Sequence[StepSpec | None] = [None, *steps] if has_setup else steps
        self._next = 0

    def beginning(self, number: int) -> Sequence[LogMark]:
        """Return the marks up to the beginning of this step."""
        marks = [*self._left_out(number)]
        if number < len(self._steps):
            self._next = number + 1
            step = self._steps[number]
            marks += [] if step is None else [LogMark.of(f"$ {step.name}")]
        return marks

    def rest(self) -> Sequence[LogMark]:
        """Return the marks of steps after the last one that began."""
        return [*self._left_out(len(self._steps))]

    def _left_out(self, before: int) -> Iterator[LogMark]:
        """Name the steps that their own `if` left out.

        Others did not run because one had failed.
        """
        for step in self._steps[self._next : before]:
            if step is not None and step.condition:
                yield LogMark.of(f'- {step.name}: not run, if="{step.condition}"')
        self._next = max(self._next, min(before, len(self._steps)))


def went_on(detail: str) -> LogMark:
    """Return the mark of a failed step with `continue`."""
    return LogMark.of(f"! {detail}; the job goes on (continue)")
