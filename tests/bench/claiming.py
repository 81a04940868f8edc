"""Measures jobs claimed and finished per second, and claims in a full store.

It does so on both stores. Each job of a batch is finished by itself, as the orchestrator does it; the store
writes everything that it writes in production: attempts, states of runs, statuses in the outbox. The clock
starts once each claimer has done a batch: an orchestrator opens its connections and prepares its statements
once in its life.
"""

import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import asyncpg

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import JobSpec, Outcome, Reason, StepSpec
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.records.rows import encode_spec
from tests.bench.processes import role
from tests.bench.publishing import requests
from tests.servers.postgresql import own_postgresql

BATCH: Final = 32
WORKERS: Final = 4
"""Claimers at work at once, in two processes.

So many keep both processors busy; more only displace each other from the caches.
"""
RATE_GOAL: Final = 8000.0
COST_GOAL: Final = 1.5

LABEL: Final = "linux"
DONE: Final = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)
SPEC: Final = encode_spec(
    JobSpec(
        name="test",
        runs_on=LABEL,
        steps=(
            StepSpec(name="build", run="make -j 4"),
            StepSpec(name="unit tests", run="make check && ./collect --coverage"),
        ),
    )
)
REPOSITORIES: Final = 500
BODY: Final = requests(1, "claiming")[0]
REQUEST_ID: Final = str(json.loads(BODY)["request_id"])
"""Each run gets another id, since a request that was read before is cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claiming:
    """The figures of one store."""

    store: str
    per_second: list[float]
    """Jobs claimed in batches and finished, round by round."""
    bare: list[float]
    """The same rows written by two bare statements per batch, in turn with ours.

    None for SQLite.
    """
    cpu_microseconds: float
    """Processor seconds of the claiming processes per job, without the server's own."""
    empty_ms: list[float]
    """Claims of a batch in a nearly empty store: medians, round by round.

    The store holds only what they take.
    """
    full_ms: list[float]
    finished: int
    waiting: int

    @property
    def of_bare(self) -> float | None:
        """Our rate as a share of the bare database's; the median of pairs."""
        if not self.bare:
            return None
        return statistics.median(
            of_solstice / bare for of_solstice, bare in zip(self.per_second, self.bare, strict=True)
        )

    @property
    def ratio(self) -> float:
        """A claim in a full store as a multiple of one in an empty store."""
        return statistics.median(
            full / empty for full, empty in zip(self.full_ms, self.empty_ms, strict=True)
        )


async def measure(*, count: int, finished: int, waiting: int, rounds: int) -> list[Claiming]:
    """Claim and finish `count` jobs. A full store has so many finished and waiting ones."""
    figures = []
    with ExitStack() as opened:
        places: list[tuple[str, Callable[[], str]]] = [
            ("PostgreSQL", opened.enter_context(postgresql_places())),
            ("SQLite", opened.enter_context(sqlite_places())),
        ]
        for name, place in places:
            of_solstice, bare = list[Rate](), list[Rate]()
            for _ in range(rounds):
                for claimer, stored in (("claimer", of_solstice), ("bare_claimer", bare)):
                    if claimer == "claimer" or name == "PostgreSQL":
                        url = place()
                        await fill(url, finished=0, waiting=count + WORKERS * BATCH)
                        stored.append(await claimed_and_finished(claimer, url, count))
            full, empty = place(), place()
            await fill(full, finished=finished, waiting=waiting)
            await fill(empty, finished=0, waiting=2 * rounds * BATCH * 100)
            pairs = [(await claim_ms(empty), await claim_ms(full)) for _ in range(rounds)]
            figures.append(
                Claiming(
                    store=name,
                    per_second=[each.per_second for each in of_solstice],
                    bare=[each.per_second for each in bare],
                    cpu_microseconds=statistics.median(each.cpu_microseconds for each in of_solstice),
                    empty_ms=[pair[0] for pair in pairs],
                    full_ms=[pair[1] for pair in pairs],
                    finished=finished,
                    waiting=waiting,
                )
            )
    return figures


class Rate(NamedTuple):
    """The rate of all claimers together."""

    per_second: float
    cpu_microseconds: float
    """Processor seconds of all claimers, per job."""


async def claimed_and_finished(claimer: str, url: str, count: int) -> Rate:
    """The rate at which that role's claimers (roles.py) claim and finish `count` jobs."""
    async with (
        role(claimer, url=url, name="a", workers=WORKERS // 2) as one,
        role(claimer, url=url, name="b", workers=WORKERS // 2) as other,
    ):
        for each in (one, other):
            await each.answer()
        for each in (one, other):
            await each.go()
        facts = [await each.answer() for each in (one, other)]
    if sum(each["jobs"] for each in facts) != count:
        raise RuntimeError(f"{count} jobs were there, and {facts} were claimed")
    seconds = max(each["done_at"] for each in facts) - min(each["began_at"] for each in facts)
    return Rate(count / seconds, sum(each["cpu_seconds"] for each in facts) / count * 1e6)


async def claim_ms(url: str, claims: int = 100) -> float:
    """The median time of a claim of a batch without other claimers."""
    async with open_store(url) as store:
        took = []
        for _ in range(claims):
            begun = time.perf_counter()
            claimed = await store.claim("bench", {LABEL: BATCH}, BATCH)
            took.append(time.perf_counter() - begun)
            if len(claimed) != BATCH:
                raise RuntimeError(f"only {len(claimed)} were there to claim")
    return statistics.median(took) * 1000


async def claim_and_finish_batch(store: JobStore, worker: str) -> int:
    """Claim and finish a batch of jobs, or the rest; return how many."""
    claims = await store.claim(worker, {LABEL: BATCH}, BATCH)
    ends = [store.finish(claim.key, DONE) for claim in claims]
    if not all([await end for end in ends]):
        raise RuntimeError("somebody else ended a job of ours")
    return len(claims)


@contextmanager
def postgresql_places() -> Iterator[Callable[[], str]]:
    """A new database at every call, on a server set up as in production.

    It writes to its disk and runs autovacuum.
    """
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum_naptime": "1min"}
    with own_postgresql(synced=True, settings=settings) as server, ExitStack() as databases:
        yield lambda: databases.enter_context(server.database()).url


@contextmanager
def sqlite_places() -> Iterator[Callable[[], str]]:
    """A new file at every call."""
    with tempfile.TemporaryDirectory() as folder:
        yield lambda: f"sqlite:///{Path(tempfile.mkdtemp(dir=folder)) / 'store.db'}"


async def fill(url: str, *, finished: int, waiting: int) -> None:
    """Insert runs of one job each by plain SQL, instead of a million calls."""
    async with open_store(url):
        pass  # the schema
    if url.startswith("sqlite"):
        await asyncio.to_thread(_fill_sqlite, url.removeprefix("sqlite:///"), finished, waiting)
    else:
        await _fill_postgresql(url, finished, waiting)


async def _fill_postgresql(url: str, finished: int, waiting: int) -> None:
    async with _connected(url) as connection:
        await connection.execute(
            f"CREATE TEMPORARY TABLE numbers AS SELECT number, number > {finished} AS waits,"  # noqa: S608  numbers of our own
            f" {_id('0')} AS run_id, {_id('1')} AS job_id, 'river/' || number % {REPOSITORIES} AS repository"
            f" FROM generate_series(1, {finished + waiting}) AS number"
        )
        await connection.execute(
            "INSERT INTO requests SELECT run_id, decode(md5(run_id), 'hex'), NULL, repository, 0, NULL,"
            " convert_to(replace($1::text, $2, run_id), 'UTF8') FROM numbers",
            BODY.decode(),
            REQUEST_ID,
        )
        await connection.execute(
            "INSERT INTO runs (run_id, job_count, state, started_at, finished_at) SELECT run_id, 1,"
            " CASE WHEN waits THEN 'waiting' ELSE 'succeeded' END, CASE WHEN waits THEN NULL ELSE 1 END,"
            " CASE WHEN waits THEN NULL ELSE 2 END FROM numbers"
        )
        await connection.execute(
            "INSERT INTO jobs (job_id, run_id, position, name, runs_on, priority, repository, needs, spec, state,"  # noqa: S608  our own words
            " reason, attempt, start_tag, created_at, waiting_since, started_at, finished_at, exit_code, worker_id)"
            f" SELECT job_id, run_id, 0, 'test', '{LABEL}', 2, repository, '[]', $1,"
            " CASE WHEN waits THEN 'waiting' ELSE 'succeeded' END,"
            " CASE WHEN waits THEN 'planned' ELSE 'completed' END, CASE WHEN waits THEN 0 ELSE 1 END,"
            f" number / {REPOSITORIES}, extract(epoch FROM now()), extract(epoch FROM now()),"
            " CASE WHEN waits THEN NULL ELSE 1 END, CASE WHEN waits THEN NULL ELSE 2 END,"
            " CASE WHEN waits THEN NULL ELSE 0 END, CASE WHEN waits THEN NULL ELSE 'bench' END FROM numbers",
            SPEC,
        )
        # As autovacuum leaves it, sooner or later.
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")


def _fill_sqlite(path: str, finished: int, waiting: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute(
            "CREATE TEMPORARY TABLE numbers AS WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL"  # noqa: S608  numbers of our own
            f" SELECT number + 1 FROM numbers WHERE number < {finished + waiting})"
            f" SELECT number, number > {finished} AS waits, printf('00000000-0000-7000-8000-0%011d', number) AS run_id,"
            " printf('00000000-0000-7000-8000-1%011d', number) AS job_id,"
            f" 'river/' || (number % {REPOSITORIES}) AS repository FROM numbers"
        )
        connection.execute(
            "INSERT INTO runs (age, run_id, job_count, request_key, repository, state, created_at, started_at, finished_at)"
            " SELECT number, run_id, 1, randomblob(16), repository, iif(waits, 'waiting', 'succeeded'), 0,"
            " iif(waits, NULL, 1), iif(waits, NULL, 2) FROM numbers"
        )
        connection.execute(
            "INSERT INTO requests (age, body) SELECT number, CAST(replace(?, ?, run_id) AS BLOB) FROM numbers",
            (BODY.decode(), REQUEST_ID),
        )
        connection.execute(
            "INSERT INTO jobs (job_id, run_id, position, name, runs_on, priority, repository, needs, spec, state,"  # noqa: S608  our own words
            " reason, attempt, start_tag, created_at, waiting_since, started_at, finished_at)"
            f" SELECT job_id, run_id, 0, 'test', '{LABEL}', 2, repository, '[]', ?,"
            " iif(waits, 'waiting', 'succeeded'), iif(waits, 'planned', 'completed'), iif(waits, 0, 1),"
            f" number / {REPOSITORIES}, ?, ?, iif(waits, NULL, 1), iif(waits, NULL, 2) FROM numbers",
            (SPEC, time.time(), time.time()),
        )
        connection.execute(
            "INSERT INTO attempts (job_id, number, worker_id, state, reason, started_at, finished_at, exit_code)"
            " SELECT job_id, 1, 'bench', 'succeeded', 'completed', 1, 2, 0 FROM numbers WHERE NOT waits"
        )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _id(kind: str) -> str:
    return f"'00000000-0000-7000-8000-{kind}' || lpad(number::text, 11, '0')"


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()
