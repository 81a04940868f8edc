"""The store's promises about workers: which exist, their eligibility, and orders to them."""

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
    """The part of `JobStore` about workers."""

    async def register(self, registration: WorkerRegistration) -> WorkerState:
        """Register a worker with its properties and return its eligibility. Safe to repeat.

        A new process starts with the last eligibility of its name: paused or quarantined, with its failures counted;
        not draining. This removes rows of that name whose process has ended. A worker that never registered may still
        claim, with its id as its name.
        """
        ...

    async def leave(self, worker_id: str) -> None:
        """Record that the worker ended in order and holds nothing.

        Its eligibility is kept for the next process of its name.
        """
        ...

    async def report(self, worker_id: str, pressure: WorkerPressure) -> None:
        """Record the worker's pressure from now on.

        Nothing changes when the worker is not known. A new process starts without pressure.
        """
        ...

    async def workers(self) -> Sequence[WorkerView]:
        """Return workers that live or lived within FORGET_SECONDS, by name, newest of a name first."""
        ...

    async def worker(self, worker_id: str) -> WorkerView | None: ...

    async def steer_worker(self, worker_id: str, order: WorkerOrder) -> WorkerView | OrderRefusal | None:
        """Give a worker an order, which applies from the next claim on.

        The worker learns of it with its next renewal. None when it does not exist.
        """
        ...
