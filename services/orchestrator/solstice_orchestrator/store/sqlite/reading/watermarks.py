"""Reads the watermarks of refs from the SQLite store."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from solstice_orchestrator.queue_times.waits import WatermarkLag
from solstice_orchestrator.store.records.rows import run_view
from solstice_orchestrator.store.records.watermark_queries import PUSHES_SHOWN, WatermarkQueries
from solstice_orchestrator.store.sqlite.tables.transaction import REQUEST
from solstice_orchestrator.store.views import WatermarkView

_PENDING: Final = "finished_at IS NULL AND state <> 'delayed'"
_QUERIES: Final = WatermarkQueries(
    mark="?",
    requests="runs",
    runs="runs INDEXED BY runs_by_push",
    pending=_PENDING,
    open_pushes="FROM runs WHERE state IN ('planning', 'waiting', 'running') AND pushed_at IS NOT NULL",
)
_PUSHES: Final = (
    "FROM runs INDEXED BY runs_by_push WHERE pushed_at IS NOT NULL AND repository = ?1 AND ref = ?2 AND"
)
_AFTER: Final = f"run_id > ?3 AND {_PENDING}"


def watermarks(
    connection: sqlite3.Connection,
    now: float,
    *,
    limit: int,
    after: tuple[str, str],
    repository: str | None,
    ref: str | None,
    behind: bool,
) -> Sequence[WatermarkView]:
    """Return a page of watermarks, by repository and ref."""
    refs = (
        _QUERIES.refs_behind(limit) if behind else _QUERIES.refs(limit, of_repository=repository is not None)
    )
    rows = connection.execute(refs, (repository, ref, *after)).fetchall()
    return [_watermark(connection, now, row["repository"], row["ref"]) for row in rows]


def _watermark(connection: sqlite3.Connection, now: float, repository: str, ref: str) -> WatermarkView:
    execute = connection.execute
    handled = execute(
        f"SELECT *, {REQUEST} {_PUSHES} finished_at IS NOT NULL ORDER BY run_id DESC LIMIT 1",
        (repository, ref),
    ).fetchone()
    key = (repository, ref, handled["run_id"] if handled else "")
    pending, oldest = execute(
        f"SELECT count(*), coalesce(min(pushed_at), ?4) {_PUSHES} {_AFTER}",
        (*key, now),
    ).fetchone()
    pushes = execute(
        f"SELECT *, {REQUEST} {_PUSHES} {_AFTER} ORDER BY run_id LIMIT {PUSHES_SHOWN:d}",
        key,
    )
    return WatermarkView(
        repository=repository,
        ref=ref,
        handled=handled and run_view(handled),
        pending=pending,
        pushes=tuple(map(run_view, pushes)),
        lag_seconds=max(0.0, now - oldest),
    )


def lag(connection: sqlite3.Connection, now: float) -> WatermarkLag:
    refs, oldest = connection.execute(_QUERIES.lag).fetchone()
    return WatermarkLag(refs, 0.0 if oldest is None else max(0.0, now - oldest))
