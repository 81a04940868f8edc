"""What an outbox held when its rows were single messages, and what becomes of that in every store."""

from typing import Final

from solstice_orchestrator.store.protocol import JobStore, OutboxKind
from tests.builders import job_request

BATCHES_VERSION: Final = 14
"""The version of the schema from which on a row may be many messages."""
OLD_ROWS: Final = (
    ("status", "r-1", b'{"first":1}', "{}"),
    ("dead_letter", "r-1", b'{"request":1}', '{"x-solstice-reason": "agent_lost"}'),
    ("status", "r-2", b'{"second":1}', "{}"),
)
"""Rows of its four columns."""


async def check_outbox_after_upgrade(store: JobStore) -> None:
    """What waited comes first and as it was; what is told together from now on comes after it."""
    await store.admit([job_request() for _ in range(3)])
    found = list(await store.outbox(100))
    assert [(each.kind, each.request_id, each.body) for each in found[:3]] == [
        (OutboxKind(kind), request_id, body) for kind, request_id, body, _ in OLD_ROWS
    ]
    assert found[1].headers == {"x-solstice-reason": "agent_lost"}
    assert len(found) == 6
    await store.published([found[0].number, found[2].number, found[4].number])
    assert list(await store.outbox(100)) == [found[1], found[3], found[5]]
    await store.published([each.number for each in found])
    assert await store.outbox(100) == ()
