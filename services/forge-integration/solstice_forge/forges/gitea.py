"""Gitea's webhooks; the payloads are those of `gitea_family`."""

from collections.abc import Sequence
from typing import Final

from solstice_common.messages import Source
from solstice_forge.forges import gitea_family
from solstice_forge.forges.events import Event, Ignored, Malformed
from solstice_forge.forges.protocol import Forged, Genuine, Headers, Unsupported
from solstice_forge.forges.signatures import check_given

SOURCE: Final = Source.GITEA

SIGNATURE: Final = "x-gitea-signature"


def delivery_id(headers: Headers) -> str | None:
    return headers.get("x-gitea-delivery") or None


def event_name(headers: Headers) -> str | None:
    return headers.get("x-gitea-event") or None


def unproven(headers: Headers, secrets: Sequence[str]) -> Forged | None:
    return check_given(SIGNATURE, headers.get(SIGNATURE), secrets)


def verify(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,  # noqa: ARG001  the same shape as every forge; Gitea signs no time
) -> Genuine | Forged | Unsupported:
    return gitea_family.verify(SIGNATURE, headers, body, secrets)


def parse(event_name: str, payload: bytes) -> Event | Ignored | Malformed:
    return gitea_family.parse(event_name, payload)
