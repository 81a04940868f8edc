"""Stores the state of comparisons, in SQL for both SQLite and PostgreSQL.

Each statement is a transaction of its own, and safe to repeat.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import orjson
from msgspec import DecodeError
from msgspec.json import Decoder

from solstice_common.values.value import Value
from solstice_forge.inbox.frames import decompressed
from solstice_forge.inbox.reconcile_state import (
    ANYTHING,
    HeadReader,
    KnownRepository,
    ReconcileRound,
    RefHead,
    ResendRecord,
)

READ_AT_ONCE: Final = 500
WRITTEN_AT_ONCE: Final = 100
SETTLED_SECONDS: Final = 30.0
"""The log is read up to numbers of this age, before which none is missing.

A number is given before its delivery is committed.
"""
TAGS: Final = "refs/tags/"
"""Refs that are never compared."""
RESENDS_REMEMBERED_SECONDS: Final = 30 * 86_400.0
"""How long requests to send again are remembered; no forge stores deliveries for longer."""


class _Request(Value, frozen=True, kw_only=True):
    event: str | None = None
    ref: str | None = None
    commit_sha: str


_REQUEST: Final = Decoder(_Request)

Fetch = Callable[..., Awaitable[Sequence[Any]]]


class ReconcileTables:
    """Implements `ReconcileState`: `read` and `write` run one statement; `prefix` begins the tables' names.

    `listed` is the SQL of a list that is given as JSON text in `$1`, `$2`...; `placeholder` is the prefix of a value's
    number.
    """

    def __init__(self, read: Fetch, write: Fetch, *, prefix: str, placeholder: str, listed: str) -> None:
        self._fetch = read
        self._run = write
        self._prefix = prefix
        self._placeholder = placeholder
        self._listed = listed

    async def claim(
        self, source: str, holder: str, *, now: float, until: float, ended_before: float | None = None
    ) -> bool:
        rows = await self._write(
            "INSERT INTO {reconcile_rounds} (source_name, holder, held_until) VALUES ($1, $2, $3)"
            " ON CONFLICT (source_name) DO UPDATE SET holder = excluded.holder, held_until = excluded.held_until"
            " WHERE {reconcile_rounds}.holder = excluded.holder AND {reconcile_rounds}.held_until > 0"
            " OR {reconcile_rounds}.held_until <= $4"
            " AND ({reconcile_rounds}.ended_at IS NULL OR {reconcile_rounds}.ended_at < $5) RETURNING source_name",
            source,
            holder,
            until,
            now,
            # Further ahead than any clock.
            1e18 if ended_before is None else ended_before,
        )
        return bool(rows)

    async def end_round(self, source: str, holder: str, *, now: float, report: bytes) -> None:
        await self._write(
            "UPDATE {reconcile_rounds} SET held_until = 0, ended_at = $3, report = $4"
            " WHERE source_name = $1 AND holder = $2",
            source,
            holder,
            now,
            report.decode(),
        )

    async def rounds(self, now: float) -> Sequence[ReconcileRound]:
        rows = await self._read(
            "SELECT source_name, held_until, ended_at, report FROM {reconcile_rounds} ORDER BY source_name"
        )
        return [
            ReconcileRound(
                source_name=row["source_name"],
                is_held=row["held_until"] > now,
                ended_at=row["ended_at"],
                report=None if row["report"] is None else row["report"].encode(),
            )
            for row in rows
        ]

    async def learn(
        self, now: float, unbuilt: Collection[str], read: HeadReader, *, headless: Collection[str] = ()
    ) -> None:
        (state,) = await self._read("SELECT read_to FROM {reconcile_cursor}")
        read_to = state["read_to"]
        more = True
        while more:
            rows = await self._read(
                "SELECT d.row_id, d.source_name, d.event_name, d.repo_full_name, d.received_at, r.request,"
                " CASE WHEN r.row_id IS NULL AND d.reason IN [$3] THEN d.body END AS body FROM {deliveries} d"
                " LEFT JOIN {requests} r ON r.row_id = d.row_id WHERE d.row_id > $1 ORDER BY d.row_id LIMIT $2",
                read_to,
                READ_AT_ONCE,
                _json(unbuilt),
            )
            await self._learn_from(rows, read, headless)
            settled = list(takewhile(lambda row: row["received_at"] <= now - SETTLED_SECONDS, rows))
            if settled:
                read_to = settled[-1]["row_id"]
                await self._write("UPDATE {reconcile_cursor} SET read_to = $1 WHERE read_to < $1", read_to)
            # If any of these rows is not settled, the next call reads the rest.
            more = len(settled) == READ_AT_ONCE
        await self._write(
            "DELETE FROM {reconcile_resends} WHERE requested_at < $1", now - RESENDS_REMEMBERED_SECONDS
        )
        # An earlier version stored them.
        await self._write("DELETE FROM {reconcile_heads} WHERE source_name IN [$1]", _json(headless))

    async def _learn_from(self, rows: Sequence[Any], read: HeadReader, headless: Collection[str]) -> None:
        kinds: set[tuple[str, str, str]] = set()
        heads: dict[tuple[str, str, str], tuple[str, float]] = {}
        for row in rows:
            source, repository = row["source_name"], row["repo_full_name"]
            if repository is None:
                continue
            kinds.add((source, repository, ANYTHING))
            head = _head_in(row, read)
            if head is not None:
                kinds.add((source, repository, head.kind))
            if head is not None and source not in headless and not head.ref.startswith(TAGS):
                heads[source, repository, head.ref] = (head.commit_sha, row["received_at"])
        for kind in sorted(kinds):
            await self._write(
                "INSERT INTO {reconcile_kinds} (source_name, repo_full_name, kind) VALUES ($1, $2, $3)"
                " ON CONFLICT DO NOTHING",
                *kind,
            )
        await self._store_heads([(*head_key, *newest) for head_key, newest in sorted(heads.items())])

    async def repositories(self, source: str) -> Sequence[str]:
        rows = await self._read(
            "SELECT repo_full_name FROM {reconcile_kinds} WHERE source_name = $1 AND kind = '' ORDER BY repo_full_name",
            source,
        )
        return [row["repo_full_name"] for row in rows]

    async def known(self, source: str, repository: str) -> KnownRepository:
        kinds = await self._read(
            "SELECT kind, compared FROM {reconcile_kinds} WHERE source_name = $1 AND repo_full_name = $2",
            source,
            repository,
        )
        heads = await self._read(
            "SELECT ref, commit_sha FROM {reconcile_heads} WHERE source_name = $1 AND repo_full_name = $2",
            source,
            repository,
        )
        return KnownRepository(
            kinds=frozenset(row["kind"] for row in kinds),
            compared=frozenset(row["kind"] for row in kinds if row["compared"]),
            heads={row["ref"]: row["commit_sha"] for row in heads},
        )

    async def remember(
        self, source: str, repository: str, kind: str, heads: Mapping[str, str], at: float
    ) -> None:
        await self._store_heads([(source, repository, ref, sha, at) for ref, sha in sorted(heads.items())])
        await self._write(
            "INSERT INTO {reconcile_kinds} (source_name, repo_full_name, kind, compared) VALUES ($1, $2, $3, 1)"
            " ON CONFLICT (source_name, repo_full_name, kind) DO UPDATE SET compared = 1",
            source,
            repository,
            kind,
        )

    async def _store_heads(self, heads: Sequence[tuple[str, str, str, str, float]]) -> None:
        """Store the source, repository, ref, commit and time of each head.

        One call takes many, so that they are one commit.
        """
        statement = (
            "INSERT INTO {reconcile_heads} (source_name, repo_full_name, ref, commit_sha, known_at)"
            " VALUES ($1, $2, $3, $4, $5) ON CONFLICT (source_name, repo_full_name, ref) DO UPDATE"
            " SET commit_sha = excluded.commit_sha, known_at = excluded.known_at"
            " WHERE {reconcile_heads}.known_at <= excluded.known_at"
        )
        for start in range(0, len(heads), WRITTEN_AT_ONCE):
            group = heads[start : start + WRITTEN_AT_ONCE]
            await asyncio.gather(*(self._write(statement, *head) for head in group))

    async def forget_heads(self, source: str, repository: str, refs: Collection[str], before: float) -> None:
        await self._write(
            "DELETE FROM {reconcile_heads}"
            " WHERE source_name = $1 AND repo_full_name = $2 AND ref IN [$3] AND known_at < $4",
            source,
            repository,
            _json(refs),
            before,
        )

    async def delivered(self, content_keys: Collection[str]) -> frozenset[str]:
        rows = await self._read(
            "SELECT content_key FROM {requests} WHERE content_key IN [$1] UNION"
            " SELECT content_key FROM {aliases} WHERE content_key IN [$1]",
            _json(content_keys),
        )
        return frozenset(row["content_key"] for row in rows)

    async def arrived(self, source: str, delivery_ids: Collection[str]) -> frozenset[str]:
        rows = await self._read(
            "SELECT delivery_id FROM {deliveries} WHERE source_name = $1 AND delivery_id IN [$2] UNION"
            " SELECT delivery_id FROM {repeats} WHERE source_name = $1 AND delivery_id IN [$2]",
            source,
            _json(delivery_ids),
        )
        return frozenset(row["delivery_id"] for row in rows)

    async def resends(self, source: str, delivery_ids: Collection[str]) -> Mapping[str, ResendRecord]:
        rows = await self._read(
            "SELECT delivery_id, times, requested_at FROM {reconcile_resends} WHERE source_name = $1 AND delivery_id IN [$2]",
            source,
            _json(delivery_ids),
        )
        return {
            row["delivery_id"]: ResendRecord(times=row["times"], requested_at=row["requested_at"])
            for row in rows
        }

    async def note_resend(self, source: str, delivery_id: str, at: float) -> None:
        await self._write(
            "INSERT INTO {reconcile_resends} (source_name, delivery_id, times, requested_at) VALUES ($1, $2, 1, $3)"
            " ON CONFLICT (source_name, delivery_id) DO UPDATE"
            " SET times = {reconcile_resends}.times + 1, requested_at = excluded.requested_at",
            source,
            delivery_id,
            at,
        )

    async def cursor(self, source: str, hook: str) -> float | None:
        rows = await self._read(
            "SELECT read_to FROM {reconcile_hooks} WHERE source_name = $1 AND hook = $2", source, hook
        )
        return float(rows[0]["read_to"]) if rows else None

    async def store_cursor(self, source: str, hook: str, mark: float) -> None:
        await self._write(
            "INSERT INTO {reconcile_hooks} (source_name, hook, read_to) VALUES ($1, $2, $3)"
            " ON CONFLICT (source_name, hook) DO UPDATE SET read_to = excluded.read_to"
            " WHERE {reconcile_hooks}.read_to < excluded.read_to",
            source,
            hook,
            mark,
        )

    async def _read(self, statement: str, *values: object) -> Sequence[Any]:
        return await self._fetch(self._sql(statement), *values)

    async def _write(self, statement: str, *values: object) -> Sequence[Any]:
        return await self._run(self._sql(statement), *values)

    def _sql(self, statement: str) -> str:
        tables = re.sub(r"\{(\w+)\}", rf"{self._prefix}\1", statement)
        lists = re.sub(r"\[(\$\d)\]", lambda match: self._listed.replace("$1", match[1]), tables)
        return lists.replace("$", self._placeholder)


def _json(texts: Collection[str]) -> str:
    return orjson.dumps(sorted(texts)).decode()


def _head_in(row: Any, read: HeadReader) -> RefHead | None:
    """Return the head by the request, or by the body of an unbuilt delivery."""
    if row["request"] is None:
        body = decompressed(bytes(row["body"] or b""))
        return read(row["source_name"], row["event_name"], body) if body else None
    try:
        request = _REQUEST.decode(bytes(row["request"]))
    except DecodeError:
        return None
    if request.ref is None or request.event is None:
        return None
    return RefHead(kind=request.event, ref=request.ref, commit_sha=request.commit_sha)
