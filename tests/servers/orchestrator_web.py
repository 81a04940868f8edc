"""Serves the orchestrator's web part over a real store.

The test plays the part that runs the jobs.
"""

import functools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from solstice_common.broker.depths import depths_of
from solstice_common.broker.protocol import BrokerHealth
from solstice_common.http.access import Access
from solstice_common.http.token_file import TokenFile
from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState
from solstice_common.topology import full_topology
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.jobs import JobSpec, Outcome, Reason, StepSpec
from solstice_orchestrator.domain.retries import RetryPolicies
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.store.sqlite import SqliteStore
from solstice_orchestrator.store.views import ChunkKind, LogChunk, RunView
from solstice_orchestrator.web.api.artifact_routes import FindArchive, no_archives
from solstice_orchestrator.web.app import create_app, serving
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from solstice_orchestrator.web.formats.sse import OpenStreams
from solstice_orchestrator.web.health import no_depths
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from tests.stores import retries_after, store_file

WORKER = "worker-1"
SUCCEEDED = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)


def spec(name: str = "build", *, needs: Sequence[str] = (), runs_on: str = "linux") -> JobSpec:
    """A job of one step."""
    return JobSpec(name=name, runs_on=runs_on, steps=(StepSpec(name="test", run="true"),), needs=tuple(needs))


@dataclass(slots=True)
class WebServer:
    """A served application and the store behind it."""

    url: str
    store: SqliteStore
    streams: OpenStreams
    metrics: Metrics
    _random: random.Random = field(default_factory=lambda: random.Random(7))
    _sequences: dict[tuple[AttemptKey, str], int] = field(default_factory=dict)
    broker: BrokerHealth = field(default_factory=lambda: BrokerHealth(connected=True))

    async def admit(self, **fields: object) -> RunView:
        """A new run, not yet planned."""
        digits = f"{self._random.getrandbits(128):032x}"
        body = {
            "schema_version": "jobrequest.v1",
            "request_id": f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}",
            "source": "forgejo",
            "repo_url": "https://forge.example/harbour/lighthouse.git",
            "repo_full_name": "harbour/lighthouse",
            "commit_sha": f"{self._random.getrandbits(160):040x}",
            "submitted_at": "2026-01-31T12:00:00Z",
            "ref": "refs/heads/main",
            "event": "push",
            "sender": "mira",
        }
        request = JobRequestV1.model_validate(body | fields)
        (admission,) = await self.store.admit([request])
        run = await self.store.run(admission.run_id)
        assert run is not None
        return run

    async def plan(self, *jobs: JobSpec, **fields: object) -> tuple[RunView, dict[str, str]]:
        """Plan a new run with these jobs; return their ids by name."""
        run = await self.admit(**fields)
        (task,) = [task for task in await self.store.claim_planning(WORKER, 100) if task.run_id == run.run_id]
        assert await self.store.planned(task, jobs or (spec(),))
        views = await self.store.jobs(run_id=run.run_id, limit=100)
        return run, {view.name: view.job_id for view in views}

    async def claim(self, job_id: str) -> AttemptKey:
        """Begin an attempt at this job, the only one waiting for its label."""
        job = await self.store.job(job_id)
        assert job is not None
        (claim,) = await self.store.claim(WORKER, {job.runs_on: 1}, 1)
        assert claim.key.job_id == job_id
        return claim.key

    async def running(self, *jobs: JobSpec, **fields: object) -> AttemptKey:
        """A new run whose first job runs."""
        specs = jobs or (spec(),)
        _, ids = await self.plan(*specs, **fields)
        return await self.claim(ids[specs[0].name])

    async def prints(
        self,
        key: AttemptKey,
        *pieces: str | bytes,
        skip: int = 0,
        kind: ChunkKind = ChunkKind.OUTPUT,
        service: str = "",
    ) -> None:
        """Write chunks to the log of the job or its service, one per piece.

        `skip` leaves a gap before them.
        """
        last = self._sequences.get((key, service), 0) + skip
        chunks = [
            LogChunk(
                sequence=last + index, at=time.time(), data=p.encode() if isinstance(p, str) else p, kind=kind
            )
            for index, p in enumerate(pieces, 1)
        ]
        assert await self.store.append_log(key, chunks, service)
        self._sequences[key, service] = last + len(chunks)

    async def finish(self, key: AttemptKey, outcome: Outcome = SUCCEEDED) -> None:
        assert await self.store.finish(key, outcome)


@asynccontextmanager
async def serve_web(
    directory: Path,
    *,
    public_url: str | None = None,
    port: int = 0,
    retries: RetryPolicies | None = None,
    require_durable: bool = False,
    dead_letters: DeadLetterAccess | None = None,
    find_archive: FindArchive = no_archives,
    caches: CacheStore | None = None,
) -> AsyncIterator[WebServer]:
    """Serve an empty store on a free port of loopback."""
    rng = random.Random(1)
    rules = StoreRules(new_id=id_source(rng), rng=rng, retries=retries or retries_after(30.0))
    streams, metrics = OpenStreams(), Metrics()
    async with SqliteStore.open(store_file(directory), rules=rules) as store:
        set_up = WebServer(url="", store=store, streams=streams, metrics=metrics)
        app = create_app(
            store=store,
            broker_health=lambda: set_up.broker,
            metrics=metrics,
            version="1.2.3",
            access=Access(file=TokenFile(directory / "tokens.json")),
            public_url=public_url,
            streams=streams,
            require_durable=require_durable,
            dead_letters=dead_letters,
            find_archive=find_archive,
            caches=caches,
            queue_depths=no_depths
            if dead_letters is None
            else functools.partial(
                depths_of,
                dead_letters.broker,
                [each.name for each in full_topology(dead_letters.settings).queues],
            ),
        )
        async with serving(app, streams, host="127.0.0.1", port=port) as url:
            set_up.url = url
            yield set_up
