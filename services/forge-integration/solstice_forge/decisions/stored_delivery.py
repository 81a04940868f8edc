"""Builds what to store of a delivery: nothing secret goes to disk. Pure."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from solstice_common.messages import Source, derive_request_id
from solstice_forge.decisions.plan import UnderstoodDelivery
from solstice_forge.decisions.requests import content_key, kind_of
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.forges.events import (
    Command,
    CommandKind,
    Event,
    Ignored,
    IgnoreReason,
    Incomplete,
    encode_lacking,
)
from solstice_forge.inbox.protocol import NewDelivery

_STORED_HEADERS: Final = re.compile(
    r"content-type|user-agent|idempotency-key|traceparent|webhook-(id|timestamp)"
    r"|x-(github|gitlab|gitea|forgejo|gogs)-(?!.*(signature|token)).+"
)
"""Listed one by one: GitLab lets people add headers of their own, which may hold keys."""
_SECRET: Final = re.compile(rb'("secret"\s*:\s*)"(?:[^"\\]|\\.)*"')


RULED_OUT: Final = frozenset(
    {
        IgnoreReason.NO_RULE,
        IgnoreReason.BRANCH_NOT_BUILT,
        IgnoreReason.PATHS_NOT_BUILT,
        IgnoreReason.FORK_NOT_BUILT,
        IgnoreReason.SKIP_CI,
    }
)
"""Reasons of deliveries that rules exclude: their bodies are stored, to be replayed after the rules change."""


def new_delivery(
    source: WebhookSource, headers: Mapping[str, str], understood: UnderstoodDelivery, received_at: float
) -> NewDelivery:
    """Return the delivery as the inbox stores it.

    It has no body when it asks for nothing, which is so for most deliveries.
    """
    event, planned = understood.event, understood.planned
    asks = planned is not None or (isinstance(event, Ignored) and event.reason in RULED_OUT)
    if planned is None and isinstance(event, Incomplete):
        return _lacking(source, headers, understood, event, received_at)
    reason, detail = (
        (event.reason.value, event.detail)
        if isinstance(event, Ignored)
        else (kind_of(event), what_follows(event))
    )
    return NewDelivery(
        source_name=source.name,
        delivery_id=understood.delivery_id,
        event_name=understood.event_name,
        repo_full_name=event.repo_full_name,
        received_at=received_at,
        headers={name: value for name, value in headers.items() if _is_stored(name)},
        body=_storable(understood.payload, source) if asks else b"",
        reason=reason,
        detail=detail,
        content_key=None if planned is None else planned.key,
        request_id=None if planned is None else planned.id,
        request=None if planned is None else planned.body,
    )


def what_follows(event: Event) -> str:
    """Return a sentence about what follows, where the kind alone does not say it."""
    if isinstance(event, Command) and event.word is CommandKind.CANCEL:
        return f"earlier requests of #{event.number} are cancelled by {event.sender or 'an unknown user'}"
    return ""


def _lacking(
    source: WebhookSource,
    headers: Mapping[str, str],
    understood: UnderstoodDelivery,
    event: Incomplete,
    received_at: float,
) -> NewDelivery:
    """Return a delivery that becomes a request after the forge is asked."""
    return NewDelivery(
        source_name=source.name,
        delivery_id=understood.delivery_id,
        event_name=understood.event_name,
        repo_full_name=event.repo_full_name,
        received_at=received_at,
        headers={name: value for name, value in headers.items() if _is_stored(name)},
        body=_storable(understood.payload, source),
        reason=kind_of(event),
        detail=what_follows(event),
        content_key=content_key(event, source, understood.delivery_id),
        request_id=derive_request_id(source.name, understood.delivery_id),
        request=None,
        lookup=encode_lacking(event),
    )


@lru_cache(maxsize=256)
def _is_stored(name: str) -> bool:
    return _STORED_HEADERS.fullmatch(name) is not None


def _storable(payload: bytes, source: WebhookSource) -> bytes:
    """Return the payload without the hook's own secret, which Gitea before 1.15 put into payloads.

    Other forges never did.
    """
    return without_secret(payload) if source.forge.SOURCE is Source.GITEA else payload


def without_secret(payload: bytes) -> bytes:
    """Return the payload without the value of any key `secret`."""
    return _SECRET.sub(rb'\1"redacted"', payload) if b'"secret"' in payload else payload
