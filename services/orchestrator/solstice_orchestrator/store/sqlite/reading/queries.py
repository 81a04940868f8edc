"""The read-only part of the SQLite store."""

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Unpack

from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_common.storage.sqlite import SqliteDatabase
from solstice_orchestrator.domain.identifiers import lowest_id
from solstice_orchestrator.queue_times.demand import DemandFacts
from solstice_orchestrator.queue_times.waits import WaitFacts, WaitingClass, WatermarkLag
from solstice_orchestrator.scheduling.workers import WorkerView
from solstice_orchestrator.store.artifact_records import ArtifactView, NeededJob
from solstice_orchestrator.store.records.moment import Moment, StoreRules
from solstice_orchestrator.store.records.report_records import AttemptNumber, ReportView
from solstice_orchestrator.store.sqlite import purge
from solstice_orchestrator.store.sqlite.reading import demand_counts, views_of_runs, waiting, watermarks
from solstice_orchestrator.store.sqlite.tables import artifact_table, report_table, start_limits, worker_table
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

Clock = Callable[[], float]


class SqliteQueries:
    """Answers the questions of `JobStore`; each answer shows one moment."""

    def __init__(self, database: SqliteDatabase, rules: StoreRules, clock: Clock) -> None:
        self._database = database
        self._rules = rules
        self._clock = clock

    async def runs(self, *, limit: int, after: str | None = None, **filters: Unpack[RunFilters]) -> Page:
        return await self._database.read(
            lambda connection: views_of_runs.runs(connection, limit=limit, after=after, **filters)
        )

    async def run_counts(
        self, *, since_seconds: float | None = None, repository: str | None = None, ref: str | None = None
    ) -> Mapping[RunState, int]:
        first = None if since_seconds is None else lowest_id(self._clock() - since_seconds)
        return await self._database.read(
            lambda connection: views_of_runs.run_counts(connection, first, repository, ref)
        )

    async def run(self, run_id: str) -> RunView | None:
        return await self._database.read(lambda connection: views_of_runs.run(connection, run_id))

    async def run_of_request(self, request_id: str) -> RunView | None:
        return await self._database.read(
            lambda connection: views_of_runs.run_of_request(connection, request_id)
        )

    async def jobs(
        self,
        *,
        limit: int,
        run_id: str | None = None,
        after: str | None = None,
        **filters: Unpack[JobFilters],
    ) -> Sequence[JobView]:
        return await self._database.read(
            lambda connection: views_of_runs.jobs(
                connection, limit=limit, run_id=run_id, after=after, **filters
            )
        )

    async def job(self, job_id: str) -> JobView | None:
        return await self._database.read(lambda connection: views_of_runs.job(connection, job_id))

    async def attempts(self, job_id: str) -> Sequence[AttemptView]:
        return await self._database.read(lambda connection: views_of_runs.attempts(connection, job_id))

    async def log(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        after: int = 0,
        limit: int = 1000,
        service: str = "",
    ) -> LogPage | None:
        return await self._database.read(
            lambda connection: views_of_runs.log(
                connection, job_id, attempt=attempt, after=after, limit=limit, service=service
            )
        )

    async def logged_services(self, job_id: str, *, attempt: int) -> Sequence[str]:
        return await self._database.read(
            lambda connection: views_of_runs.logged_services(connection, job_id, attempt=attempt)
        )

    async def log_byte(self, job_id: str, *, attempt: int, byte: int) -> LogByte:
        return await self._database.read(
            lambda connection: views_of_runs.log_byte(connection, job_id, attempt=attempt, byte=byte)
        )

    async def artifacts(
        self, *, run_id: str | None = None, job_id: str | None = None
    ) -> Sequence[ArtifactView]:
        return await self._database.read(
            lambda connection: artifact_table.listed(connection, self._clock(), run_id, job_id)
        )

    async def needed_jobs(self, run_id: str, names: Collection[str]) -> Mapping[str, NeededJob]:
        return await self._database.read(
            lambda connection: artifact_table.needed(connection, self._clock(), run_id, names)
        )

    async def reports(
        self, *, run_id: str | None = None, job_id: str | None = None, details: bool = True
    ) -> Sequence[ReportView]:
        return await self._database.read(
            lambda connection: report_table.listed(connection, run_id, job_id, details=details)
        )

    async def repository_reports(
        self, repository: str, *, limit: int, ref: str | None = None
    ) -> Sequence[ReportView]:
        return await self._database.read(
            lambda connection: report_table.newest(connection, repository, limit, ref)
        )

    async def report_results(self, attempts: Collection[AttemptNumber]) -> Mapping[AttemptNumber, bytes]:
        return await self._database.read(lambda connection: report_table.results(connection, attempts))

    async def outputs(self, job_id: str) -> Mapping[str, str]:
        return await self._database.read(lambda connection: artifact_table.outputs(connection, job_id))

    async def recorded_digests(self, digests: Collection[str]) -> frozenset[str]:
        return await self._database.read(lambda connection: artifact_table.recorded(connection, digests))

    async def planning(self, run_id: str) -> WaitFacts | None:
        return await self._database.read(
            lambda connection: waiting.planning(connection, run_id, Moment(self._clock(), self._rules))
        )

    async def waiting(self, job_id: str) -> WaitFacts | None:
        return await self._database.read(
            lambda connection: waiting.waiting(connection, job_id, Moment(self._clock(), self._rules))
        )

    async def backlog(self, most: int) -> int:
        return await self._database.read(lambda connection: views_of_runs.backlog(connection, most))

    async def delayed(self) -> int:
        return await self._database.read(demand_counts.count_delayed)

    async def demand(self, within_seconds: float, label: str | None = None) -> DemandFacts:
        return await self._database.read(
            lambda connection: demand_counts.demand(
                connection, Moment(self._clock(), self._rules), within_seconds, label
            )
        )

    async def counts(self) -> Mapping[tuple[JobState, str], int]:
        return await self._database.read(views_of_runs.counts)

    async def waiting_classes(self) -> Mapping[Priority, WaitingClass]:
        return await self._database.read(
            lambda connection: views_of_runs.waiting_classes(connection, self._clock())
        )

    async def watermarks(
        self,
        *,
        limit: int,
        after: tuple[str, str] = ("", ""),
        repository: str | None = None,
        ref: str | None = None,
        behind: bool = False,
    ) -> Sequence[WatermarkView]:
        return await self._database.read(
            lambda connection: watermarks.watermarks(
                connection,
                self._clock(),
                limit=limit,
                after=after,
                repository=repository,
                ref=ref,
                behind=behind,
            )
        )

    async def watermark_lag(self) -> WatermarkLag:
        return await self._database.read(lambda connection: watermarks.lag(connection, self._clock()))

    async def planning_pause(self) -> float | None:
        due = await self._database.read(demand_counts.next_due)
        return None if due is None else max(0.0, due - self._clock())

    async def rate_pause(self, since_seconds: float = 0.0) -> float | None:
        if not self._rules.limits.of_time:
            return None
        claimed_from = self._clock() - since_seconds

        def pause(connection: sqlite3.Connection) -> float | None:
            # On a busy machine, tokens come while this waits for its thread.
            now = self._clock()
            since = now - claimed_from
            starts = start_limits.load_budget(connection, Moment(now, self._rules), since_seconds=since)
            return starts.pause_seconds(since)

        return await self._database.read(pause)

    async def workers(self) -> Sequence[WorkerView]:
        return await self._workers(None)

    async def worker(self, worker_id: str) -> WorkerView | None:
        workers = await self._workers(worker_id)
        return workers[0] if workers else None

    async def purgeable(self, older_than_seconds: float) -> int:
        return await self._database.read(
            lambda connection: purge.purgeable(connection, self._clock() - older_than_seconds)
        )

    async def _workers(self, worker_id: str | None) -> Sequence[WorkerView]:
        return await self._database.read(
            lambda connection: worker_table.workers(
                connection, self._clock(), self._rules.lease_seconds, worker_id=worker_id
            )
        )
