"""Checks that messages in an outbox of the old schema survive the upgrade.

Its rows were single messages.
"""

from typing import Final

from solstice_orchestrator.store.protocol import JobStore, OutboxKind
from tests.builders import job_request

BATCHES_VERSION: Final = 14
"""The schema version since which a row may be many messages."""
OLD_ROWS: Final = (
    ("status", "r-1", b'{"first":1}', "{}"),
    ("dead_letter", "r-1", b'{"request":1}', '{"x-solstice-reason": "agent_lost"}'),
    ("status", "r-2", b'{"second":1}', "{}"),
)
"""Rows of the old table's four columns."""


async def check_outbox_after_upgrade(store: JobStore) -> None:
    """Check that waiting messages come first and unchanged, and new batches after them."""
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
