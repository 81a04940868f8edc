"""Publish statuses that say how long waiting jobs still have to wait.

A status is published again when its description has changed, for a few jobs at a time.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from solstice_common.broker.protocol import Broker, Message
from solstice_common.messages import JobStatusV1
from solstice_common.messages.states import JobState
from solstice_common.runtime.periodic import Sleep, periodic
from solstice_common.topology import STATUSES
from solstice_common.values.times import format_seconds
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.statuses import Status, context_of, encode_status
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.queue_times.explanation import explain
from solstice_orchestrator.queue_times.status_texts import waiting_text
from solstice_orchestrator.scheduling.workers import Presence
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.views import JobView, RunView

log = structlog.get_logger(__name__)

AT_ONCE: Final = 20
"""The most statuses in a round. A forge limits calls per minute, and final statuses come first."""
MAX_JOBS_LISTED: Final = 200
FOLLOWED: Final = 5_000


class QueueReports:
    """The descriptions last published for waiting jobs.

    They are kept in memory only: no more than a description can be lost.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        broker: Broker,
        worker_id: str,
        public_url: str | None,
        rng: random.Random,
        saturated: Callable[[], bool] = lambda: False,
    ) -> None:
        """`saturated` says whether intake is paused, so that new requests stay in the queue."""
        self._store = store
        self._broker = broker
        self._worker_id = worker_id
        self._public_url = public_url
        self._new_id = id_source(rng)
        self._saturated = saturated
        self._reported: dict[str, str] = {}

    async def round(self, *, waited_seconds: float) -> int:
        """Publish changed descriptions of jobs that have waited this long; return how many."""
        if not await self._is_leader():
            self._reported.clear()
            return 0
        jobs = await self._store.jobs(state=JobState.WAITING, limit=MAX_JOBS_LISTED)
        waiting = {job.job_id for job in jobs}
        self._reported = {job_id: words for job_id, words in self._reported.items() if job_id in waiting}
        messages: list[Message] = []
        # The longest waiting jobs first: people look for those.
        for job in reversed(jobs):
            if len(messages) == AT_ONCE:
                break
            message = await self._message(job, waited_seconds)
            if message is not None:
                messages.append(message)
        if messages:
            await self._broker.publish(messages)
        return len(messages)

    async def _is_leader(self) -> bool:
        """Return whether this orchestrator reports: of those alive, the one with the first id does."""
        alive = [each.worker_id for each in await self._store.workers() if each.presence is Presence.ALIVE]
        return bool(alive) and min(alive) == self._worker_id

    async def _message(self, job: JobView, waited_seconds: float) -> Message | None:
        facts = await self._store.waiting(job.job_id)
        if facts is None or facts.state is not JobState.WAITING or facts.now - facts.since < waited_seconds:
            return None
        # Explaining a wait takes milliseconds, so only jobs that need it are explained.
        why = explain(facts)
        if why is None:
            return None
        words = waiting_text(facts, why, saturated=self._saturated())
        if self._reported.get(job.job_id) == words:
            return None
        run = await self._store.run(job.run_id)
        if run is None or run.source_name is None:
            return None
        if len(self._reported) < FOLLOWED:
            self._reported[job.job_id] = words
        return self._status(job, run, words, facts.now)

    def _status(self, job: JobView, run: RunView, words: str, now: float) -> Message:
        """Return the job's status with a new description: same sequence, higher revision."""
        base = self._public_url
        status = Status(
            schema_version=JobStatusV1.VERSION,
            source=run.source,
            repo_url=run.repo_url,
            commit_sha=run.commit_sha,
            status_id=self._new_id(now),
            request_id=run.request_id,
            run_id=run.run_id,
            sequence=job.sequence,
            revision=int(now * 1000),
            source_name=run.source_name,
            repo_full_name=run.repo_full_name,
            ref=run.ref,
            change_number=run.change_number,
            context=context_of(job.name),
            state=job.state,
            reason=job.reason,
            description=words,
            occurred_at=format_seconds(now),
            target_url=base and f"{base}/jobs/{job.job_id}",
            job_id=job.job_id,
            job_name=job.name,
            attempt=job.attempt or None,
        )
        return Message(
            exchange=STATUSES.exchange,
            routing_key=STATUSES.routing_key,
            body=encode_status(status),
            type=JobStatusV1.VERSION,
            correlation_id=run.request_id,
        )


async def run_queue_reports(
    reports: QueueReports,
    *,
    every_seconds: float,
    rng: random.Random,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Run a round about every `every_seconds`, until cancelled; 0 means never."""
    if every_seconds <= 0:
        return
    await periodic(
        partial(reports.round, waited_seconds=every_seconds / 2),
        every_seconds=every_seconds,
        rng=rng,
        log=log,
        failed=LogEvent.QUEUE_REPORTS_PAUSED,
        unavailable="debug",
        sleep=sleep,
    )
