"""What an executor promises: it is given one attempt and tells how that ended."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.jobs import JobSpec, Outcome

LogWriter = Callable[[bytes], Awaitable[None]]
"""Takes output and marks (`marks.Mark`) as they come, in order; returning late is how it slows a talkative job down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One attempt, as an executor sees it."""

    job_id: str
    attempt: int
    spec: JobSpec
    request: JobRequestV1
    secrets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """Those that the spec names, by name; what the job prints of them is masked by whoever gave them."""


class Executor(Protocol):
    """Runs attempts. Any number of `run` calls may be under way at once.

    * `run` returns an Outcome and raises nothing but CancelledError: what goes wrong with the world is an outcome
      with an infrastructure reason, what goes wrong in the job is the job's.
    * When `stop` is set (somebody cancelled), the whole process tree gets SIGTERM, after the grace SIGKILL, and the
      outcome is CANCELLED / CANCEL_REQUESTED.
    * When the task is cancelled (we are fenced, or shut down hard), the whole process tree is killed before
      CancelledError leaves.
    * When `run` has returned or raised, no process of the attempt is alive and its workspace is gone.
    """

    @property
    def isolates(self) -> bool:
        """Whether a hostile job is kept from everything else on the machine."""
        ...

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome: ...
