"""The read-only part of the PostgreSQL store."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, Unpack

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_common.storage.postgresql import PostgreSQLDatabase
from solstice_orchestrator.queue_times.demand import DemandFacts
from solstice_orchestrator.queue_times.waits import WaitFacts, WaitingClass, WatermarkLag
from solstice_orchestrator.scheduling.quotas import MINUTE
from solstice_orchestrator.scheduling.workers import WorkerView
from solstice_orchestrator.store.artifact_records import ArtifactView, NeededJob
from solstice_orchestrator.store.postgresql import purge
from solstice_orchestrator.store.postgresql.reading import (
    demand_counts,
    listing,
    views_of_runs,
    waiting,
    watermarks,
)
from solstice_orchestrator.store.postgresql.tables import (
    artifact_table,
    report_table,
    start_limits,
    worker_table,
)
from solstice_orchestrator.store.postgresql.tables.clock import EstimatedClock
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.records.report_records import AttemptNumber, ReportView
from solstice_orchestrator.store.views import (
    AttemptView,
    JobFilters,
    JobView,
    LogByte,
    LogPage,
    Page,
    RunFilters,
    RunView,
    WatermarkView,
)

if TYPE_CHECKING:
    from solstice_common.storage.postgresql import Connection

T = TypeVar("T")
Clock = Callable[[], float]


class PostgreSQLQueries:
    """Answers the questions of `JobStore`; each answer shows one moment."""

    def __init__(self, database: PostgreSQLDatabase, rules: StoreRules, clock: Clock | None) -> None:
        self._database = database
        self._rules = rules
        self._clock = clock
        self._estimated_clock = EstimatedClock()

    async def runs(self, *, limit: int, after: str | None = None, **filters: Unpack[RunFilters]) -> Page:
        return await self._read(
            lambda connection: listing.runs(connection, limit=limit, after=after, **filters)
        )

    async def run_counts(
        self, *, since_seconds: float | None = None, repository: str | None = None, ref: str | None = None
    ) -> Mapping[RunState, int]:
        return await self._read_transaction(
            lambda transaction: listing.run_counts(transaction, since_seconds, repository, ref)
        )

    async def run(self, run_id: str) -> RunView | None:
        return await self._read(lambda connection: views_of_runs.run(connection, run_id))

    async def run_of_request(self, request_id: str) -> RunView | None:
        return await self._read(lambda connection: views_of_runs.run_of_request(connection, request_id))

    async def jobs(
        self,
        *,
        limit: int,
        run_id: str | None = None,
        after: str | None = None,
        **filters: Unpack[JobFilters],
    ) -> Sequence[JobView]:
        return await self._read(
            lambda connection: listing.jobs(connection, limit=limit, run_id=run_id, after=after, **filters)
        )

    async def job(self, job_id: str) -> JobView | None:
        return await self._read(lambda connection: views_of_runs.job(connection, job_id))

    async def attempts(self, job_id: str) -> Sequence[AttemptView]:
        return await self._read(lambda connection: views_of_runs.attempts(connection, job_id))

    async def log(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        after: int = 0,
        limit: int = 1000,
        service: str = "",
    ) -> LogPage | None:
        return await self._read(
            lambda connection: views_of_runs.log(
                connection, job_id, attempt=attempt, after=after, limit=limit, service=service
            )
        )

    async def logged_services(self, job_id: str, *, attempt: int) -> Sequence[str]:
        return await self._read(
            lambda connection: views_of_runs.logged_services(connection, job_id, attempt=attempt)
        )

    async def log_byte(self, job_id: str, *, attempt: int, byte: int) -> LogByte:
        return await self._read(
            lambda connection: views_of_runs.log_byte(connection, job_id, attempt=attempt, byte=byte)
        )

    async def artifacts(
        self, *, run_id: str | None = None, job_id: str | None = None
    ) -> Sequence[ArtifactView]:
        return await self._read_transaction(
            lambda transaction: artifact_table.listed(transaction, run_id, job_id)
        )

    async def needed_jobs(self, run_id: str, names: Collection[str]) -> Mapping[str, NeededJob]:
        return await self._read_transaction(
            lambda transaction: artifact_table.needed(transaction, run_id, names)
        )

    async def reports(
        self, *, run_id: str | None = None, job_id: str | None = None, details: bool = True
    ) -> Sequence[ReportView]:
        return await self._read(
            lambda connection: report_table.listed(connection, run_id, job_id, details=details)
        )

    async def repository_reports(
        self, repository: str, *, limit: int, ref: str | None = None
    ) -> Sequence[ReportView]:
        return await self._read(lambda connection: report_table.newest(connection, repository, limit, ref))

    async def report_results(self, attempts: Collection[AttemptNumber]) -> Mapping[AttemptNumber, bytes]:
        return await self._read(lambda connection: report_table.results(connection, attempts))

    async def outputs(self, job_id: str) -> Mapping[str, str]:
        return await self._read(lambda connection: artifact_table.outputs(connection, job_id))

    async def recorded_digests(self, digests: Collection[str]) -> frozenset[str]:
        return await self._read(lambda connection: artifact_table.recorded(connection, digests))

    async def planning(self, run_id: str) -> WaitFacts | None:
        return await self._read_transaction(lambda transaction: waiting.planning(transaction, run_id))

    async def waiting(self, job_id: str) -> WaitFacts | None:
        return await self._read_transaction(lambda transaction: waiting.waiting(transaction, job_id))

    async def backlog(self, most: int) -> int:
        return await self._read(lambda connection: views_of_runs.backlog(connection, most))

    async def delayed(self) -> int:
        return await self._read(demand_counts.count_delayed)

    async def demand(self, within_seconds: float, label: str | None = None) -> DemandFacts:
        return await self._read_transaction(
            lambda transaction: demand_counts.demand(transaction, within_seconds, label)
        )

    async def counts(self) -> Mapping[tuple[JobState, str], int]:
        return await self._read(views_of_runs.counts)

    async def waiting_classes(self) -> Mapping[Priority, WaitingClass]:
        return await self._read_transaction(views_of_runs.waiting_classes)

    async def watermarks(
        self,
        *,
        limit: int,
        after: tuple[str, str] = ("", ""),
        repository: str | None = None,
        ref: str | None = None,
        behind: bool = False,
    ) -> Sequence[WatermarkView]:
        return await self._read_transaction(
            lambda transaction: watermarks.watermarks(
                transaction, limit=limit, after=after, repository=repository, ref=ref, behind=behind
            )
        )

    async def watermark_lag(self) -> WatermarkLag:
        return await self._read_transaction(watermarks.lag)

    async def planning_pause(self) -> float | None:
        async def ask(transaction: PostgreSQLTransaction) -> float | None:
            due = await demand_counts.next_due(transaction.connection)
            return None if due is None else max(0.0, due - await transaction.now())

        return await self._read_transaction(ask)

    async def rate_pause(self, since_seconds: float = 0.0) -> float | None:
        if not self._rules.limits.of_time:
            return None
        clock = self._clock or time.monotonic
        started_at = clock()
        budget = await self._read_transaction(
            lambda each: start_limits.load_budget(
                each.connection, each.rules, each.test_now, since_seconds=since_seconds + MINUTE
            ),
        )
        # On a busy machine, tokens come before the server reads its clock.
        return budget.pause_seconds(since_seconds + clock() - started_at)

    async def workers(self) -> Sequence[WorkerView]:
        return await self._read_transaction(lambda transaction: _workers(transaction, None))

    async def worker(self, worker_id: str) -> WorkerView | None:
        found = await self._read_transaction(lambda transaction: _workers(transaction, worker_id))
        return found[0] if found else None

    async def purgeable(self, older_than_seconds: float) -> int:
        return await self._read_transaction(
            lambda transaction: purge.purgeable(transaction, older_than_seconds)
        )

    async def _read(self, work: "Callable[[Connection], Awaitable[T]]") -> T:
        return await self._database.read(work)

    async def _read_transaction(self, work: Callable[[PostgreSQLTransaction], Awaitable[T]]) -> T:
        """Carry out a reading that needs the rules and the moment."""
        return await self._read(lambda connection: work(self._transaction(connection)))

    def _transaction(self, connection: "Connection") -> PostgreSQLTransaction:
        test_now = None if self._clock is None else self._clock()
        return PostgreSQLTransaction(
            connection=connection, rules=self._rules, clock=self._estimated_clock, test_now=test_now
        )


async def _workers(transaction: PostgreSQLTransaction, worker_id: str | None) -> Sequence[WorkerView]:
    now, lease_seconds = await transaction.now(), transaction.rules.lease_seconds
    return await worker_table.workers(transaction.connection, now, lease_seconds, worker_id=worker_id)
