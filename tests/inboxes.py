"""Deliveries for tests of inboxes."""

from collections.abc import Sequence

from solstice_forge.inbox.protocol import Inbox, KeepResult, NewDelivery

NOON = 1_790_000_000.0
REQUEST = b'{"request_id":"r","schema_version":"jobrequest.v1"}'
"""The smallest request that can be published."""


def delivery(
    name: str,
    *,
    key: str | None = None,
    source: str = "forgejo",
    asks: bool = True,
    repository: str | None = "harbour/lighthouse",
    reason: str | None = None,
    received_at: float = NOON,
    body: bytes | None = None,
) -> NewDelivery:
    """A push, or a ping when there is no request."""
    return NewDelivery(
        source_name=source,
        delivery_id=name,
        event_name="push",
        repo_full_name=repository,
        received_at=received_at,
        headers={"x-forgejo-event": "push"},
        body=body if body is not None else b"{}" if asks else b"",
        reason=reason or ("push" if asks else "ping"),
        detail="",
        content_key=(key or f"key of {name}") if asks else None,
        request_id=f"request of {source} {name}" if asks else None,
        request=REQUEST if asks else None,
    )


async def keep_in_one_batch(inbox: Inbox, *deliveries: NewDelivery) -> Sequence[KeepResult]:
    """Keep these deliveries in one batch; raise the first error."""
    stored: list[KeepResult] = []
    for each in await inbox.keep_all(deliveries):
        if isinstance(each, Exception):
            raise each
        stored.append(each)
    return stored
