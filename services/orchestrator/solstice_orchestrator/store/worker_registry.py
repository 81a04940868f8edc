"""What the store promises about workers: who there is, how each stands, and what people want of it."""

from collections.abc import Sequence
from typing import Protocol

from solstice_orchestrator.scheduling.workers import (
    OrderRefusal,
    WorkerOrder,
    WorkerPressure,
    WorkerRegistration,
    WorkerState,
    WorkerView,
)


class WorkerRegistry(Protocol):
    """Part of `JobStore`, and under its promises."""

    async def register(self, registration: WorkerRegistration) -> WorkerState:
        """The worker is there, and is this; how it stands. Safe to repeat.

        A new process begins as the last one of its name stood: paused or quarantined, with its failures counted; not
        draining. Rows of that name that nobody lives behind any more are forgotten with this. A worker that never
        registered may claim all the same, under its id as its name.
        """
        ...

    async def leave(self, worker_id: str) -> None:
        """The worker ends in order, and holds nothing any more; how it stood is kept for the next of its name."""
        ...

    async def report(self, worker_id: str, pressure: WorkerPressure) -> None:
        """The worker is under this pressure from now on; nothing when it is not known. A new process begins without."""
        ...

    async def workers(self) -> Sequence[WorkerView]:
        """Every worker that is there or was within FORGET_SECONDS, by name, the newest of a name first."""
        ...

    async def worker(self, worker_id: str) -> WorkerView | None: ...

    async def steer_worker(self, worker_id: str, order: WorkerOrder) -> WorkerView | OrderRefusal | None:
        """Order a worker, from the next claim on; it hears of it with its next renewal. None when there is none."""
        ...
