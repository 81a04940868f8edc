"""What is stored of a delivery, and what is left out: nothing secret goes to disk. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from solstice_forge.events import Ignored
from solstice_forge.inbox.protocol import NewDelivery
from solstice_forge.plan import kind_of
from solstice_forge.sources import Source
from solstice_forge.triage import Understood

_KEPT: Final = re.compile(
    r"content-type|user-agent|idempotency-key|traceparent|webhook-(id|timestamp)"
    r"|x-(github|gitlab|gitea|forgejo|gogs)-(?!.*(signature|token)).+"
)
"""Named one by one: GitLab lets people add headers of their own, which may hold keys."""
_SECRET: Final = re.compile(rb'("secret"\s*:\s*)"(?:[^"\\]|\\.)*"')


def new_delivery(
    source: Source, headers: Mapping[str, str], understood: Understood, received_at: float
) -> NewDelivery:
    """The delivery as the inbox keeps it: without its body when it asks for nothing, and most deliveries do not."""
    event, wanted = understood.event, understood.wanted
    reason, detail = (
        (event.reason.value, event.detail) if isinstance(event, Ignored) else (kind_of(event), "")
    )
    return NewDelivery(
        source_name=source.name,
        delivery_id=understood.delivery_id,
        event_name=understood.event_name,
        received_at=received_at,
        headers={name: value for name, value in headers.items() if _KEPT.fullmatch(name)},
        body=b"" if wanted is None else without_secret(understood.payload),
        reason=reason,
        detail=detail,
        content_key=None if wanted is None else wanted.request.idempotency_key,
        request_id=None if wanted is None else wanted.request.request_id,
        request=None if wanted is None else wanted.body,
    )


def without_secret(payload: bytes) -> bytes:
    """The payload without the value of any key `secret`: Gitea before 1.15 wrote the hook's own into it."""
    return _SECRET.sub(rb'\1"redacted"', payload) if b'"secret"' in payload else payload
