"""Reads the watermarks of refs from the PostgreSQL store."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from solstice_orchestrator.queue_times.waits import WatermarkLag
from solstice_orchestrator.store.postgresql.reading.views_of_runs import RUN, run_of
from solstice_orchestrator.store.postgresql.tables.transaction import PostgreSQLTransaction
from solstice_orchestrator.store.records.watermark_queries import PUSHES_SHOWN, WatermarkQueries
from solstice_orchestrator.store.views import RunView, WatermarkView

_OPEN: Final = " UNION ".join(  # noqa: FLY002  one index each
    (
        "SELECT run_id FROM runs WHERE to_plan",
        "SELECT run_id FROM runs WHERE plan_worker IS NOT NULL",
        "SELECT run_id FROM runs WHERE of_several",
        "SELECT run_id FROM jobs WHERE state = 'waiting'",
        "SELECT run_id FROM jobs WHERE state = 'running'",
        "SELECT run_id FROM jobs WHERE state IN ('blocked', 'backoff', 'approval')",
    )
)
"""The runs that have not ended and are not delayed, by the indexes of what is not finished (listing.py)."""
_PENDING: Final = "finished_at IS NULL AND due_at IS NULL"
_BOTH: Final = "requests JOIN runs USING (run_id)"
_QUERIES: Final = WatermarkQueries(
    mark="$",
    requests="requests",
    runs=_BOTH,
    pending=_PENDING,
    open_pushes=f"FROM (SELECT run_id FROM ({_OPEN}) AS ids OFFSET 0) AS open_runs JOIN requests USING (run_id)"  # noqa: S608  made of constants
    " WHERE pushed_at IS NOT NULL",
)
_KEYS: Final = "FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS keys (repository, ref, handled, place)"
_OF_KEY: Final = "pushed_at IS NOT NULL AND repository = keys.repository AND ref = keys.ref"
_AFTER: Final = f"{_OF_KEY} AND requests.run_id > keys.handled AND {_PENDING}"
_HANDLED: Final = (
    f"SELECT place, found.* {_KEYS} CROSS JOIN LATERAL"
    f" ({RUN} WHERE {_OF_KEY} AND finished_at IS NOT NULL ORDER BY requests.run_id DESC LIMIT 1) AS found"
)
_COUNTS: Final = (
    f"SELECT place, found.* {_KEYS} CROSS JOIN LATERAL"  # noqa: S608  made of constants
    f" (SELECT count(*) AS pending, min(pushed_at) AS oldest FROM {_BOTH} WHERE {_AFTER}) AS found ORDER BY place"
)
_PUSHES: Final = (
    f"SELECT place, found.* {_KEYS} CROSS JOIN LATERAL"
    f" ({RUN} WHERE {_AFTER} ORDER BY requests.run_id LIMIT {PUSHES_SHOWN:d}) AS found ORDER BY place, run_id"
)


async def watermarks(
    transaction: PostgreSQLTransaction,
    *,
    limit: int,
    after: tuple[str, str],
    repository: str | None,
    ref: str | None,
    behind: bool,
) -> Sequence[WatermarkView]:
    """Return a page of watermarks, by repository and ref."""
    fetch, now = transaction.connection.fetch, await transaction.now()
    refs = (
        _QUERIES.refs_behind(limit) if behind else _QUERIES.refs(limit, of_repository=repository is not None)
    )
    rows = await fetch(refs, repository, ref, *after)
    keys = [row["repository"] for row in rows], [row["ref"] for row in rows]
    handled = {row["place"]: run_of(row) for row in await fetch(_HANDLED, *keys, [""] * len(rows))}
    places = range(1, len(rows) + 1)
    behind_of = [handled[place].run_id if place in handled else "" for place in places]
    counts = await fetch(_COUNTS, *keys, behind_of)
    pushes: defaultdict[int, list[RunView]] = defaultdict(list)
    for row in await fetch(_PUSHES, *keys, behind_of):
        pushes[row["place"]].append(run_of(row))
    return [
        WatermarkView(
            repository=row["repository"],
            ref=row["ref"],
            handled=handled.get(place),
            pending=count["pending"],
            pushes=tuple(pushes[place]),
            lag_seconds=_since(count["oldest"], now),
        )
        for place, row, count in zip(places, rows, counts, strict=True)
    ]


async def lag(transaction: PostgreSQLTransaction) -> WatermarkLag:
    (row,) = await transaction.connection.fetch(_QUERIES.lag)
    return WatermarkLag(row["refs"], _since(row["oldest"], await transaction.now()))


def _since(oldest: float | None, now: float) -> float:
    return 0.0 if oldest is None else max(0.0, now - oldest)
