"""Reads from a dead letter why and when it was refused, and its request. Pure."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.broker.headers import (
    ATTEMPT_HEADER,
    DETAIL_HEADER,
    HISTORY_HEADER,
    REASON_HEADER,
    REFUSED_AT_HEADER,
    REFUSED_BY_HEADER,
    RUN_HEADER,
)
from solstice_common.broker.protocol import HELD_BODY_BYTES
from solstice_common.messages import Priority
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_common.messages.priorities import named_class, numbered_class
from solstice_common.values.times import format_timestamp, parse_timestamp

UNKNOWN: Final = "unknown"
"""The reason where neither we nor the broker gave one."""
BRIEF_CHARACTERS: Final = 2048
"""The longest text in a list: a stranger may have written 128 KiB."""


@dataclass(frozen=True, kw_only=True)
class DeadLetterFacts:
    """A dead letter and its facts; empty or None where they are unknown."""

    dead_letter: DeadLetter
    id: str
    size: int
    """The bytes of its body."""
    reason: str
    """One word: ours (`invalid_field`), else the broker's (`rejected`, `delivery_limit`), else `unknown`."""
    detail: str
    dead_since: datetime | None
    repository: str
    """What the forge calls it, else its URL."""
    priority: Priority | None
    """The class that the request names, else that of the message's number; None for messages without a class, such as statuses."""
    request_id: str
    run_id: str
    """The run that failed for infrastructure reasons; a replay of its request would be a duplicate."""
    refused_by: str
    attempt: int
    history: Sequence[str]

    def brief(self) -> "DeadLetterFacts":
        """Return what a list shows, without bodies: a service may have thousands in memory."""
        return replace(
            self,
            dead_letter=DeadLetter(
                queue=self.dead_letter.queue,
                body=b"",
                type=(self.dead_letter.type or "")[:BRIEF_CHARACTERS] or None,
            ),
            history=(),
            **{name: getattr(self, name)[:BRIEF_CHARACTERS] for name in _TEXTS},
        )

    def document(self) -> dict[str, Any]:
        """Return one line of a list, as JSON."""
        return {
            "id": self.id,
            "queue": self.dead_letter.queue,
            "reason": self.reason,
            "detail": self.detail,
            "dead_since": None if self.dead_since is None else format_timestamp(self.dead_since),
            "repository": self.repository or None,
            "priority": self.priority,
            "request_id": self.request_id or None,
            "run_id": self.run_id or None,
            "type": self.dead_letter.type,
            "attempt": self.attempt,
            "bytes": self.size,
        }

    def whole_document(self) -> dict[str, Any]:
        """Return everything about it, as JSON."""
        return self.document() | {
            "refused_by": self.refused_by or None,
            "history": list(self.history),
            "message_id": self.dead_letter.message_id,
            "content_type": self.dead_letter.content_type,
            "headers": dict(self.dead_letter.headers),
            "body": self.dead_letter.body.decode("utf-8", "backslashreplace"),
            "body_omitted_bytes": self.omitted_bytes,
        }

    @property
    def omitted_bytes(self) -> int:
        """How many bytes of the body were left out."""
        return self.size - len(self.dead_letter.body)


_TEXTS: Final = ("reason", "detail", "repository", "request_id", "run_id", "refused_by")


def facts_of(dead_letter: DeadLetter) -> DeadLetterFacts:
    """Read a dead letter; never fails for any content."""
    headers, size = dead_letter.headers, dead_letter.size
    # A larger one is not read as JSON even where it is whole: of 15 MiB of brackets Python makes 500 MiB.
    fields = _fields(dead_letter.body) if size <= HELD_BODY_BYTES else {}
    death = _first_death(headers)
    reason = _text(headers.get(REASON_HEADER)) or _text(death.get("reason")) or UNKNOWN
    detail = _text(headers.get(DETAIL_HEADER))
    if reason == "rejected" and size > MAX_MESSAGE_BYTES:
        # No service reads so large a body, not even to publish it with a reason.
        reason = "oversize"
        detail = f"{size} bytes, at most {MAX_MESSAGE_BYTES} are allowed"
    return DeadLetterFacts(
        dead_letter=dead_letter,
        id=dead_letter.id,
        size=size,
        reason=reason,
        detail=detail,
        dead_since=_moment(headers.get(REFUSED_AT_HEADER))
        or _moment(death.get("time"))
        or dead_letter.timestamp,
        repository=_text(fields.get("repo_full_name")) or _text(fields.get("repo_url")),
        priority=named_class(fields.get("priority")) or numbered_class(dead_letter.priority),
        request_id=dead_letter.correlation_id or _text(fields.get("request_id")),
        run_id=_text(headers.get(RUN_HEADER)),
        refused_by=_text(headers.get(REFUSED_BY_HEADER)),
        attempt=attempt if isinstance(attempt := headers.get(ATTEMPT_HEADER), int) else 1,
        history=_text(headers.get(HISTORY_HEADER)).splitlines(),
    )


def _fields(body: bytes) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):
        fields = json.loads(body)
        if isinstance(fields, dict):
            return fields
    return {}


def _first_death(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    deaths = headers.get("x-death")
    first = deaths[0] if isinstance(deaths, list) and deaths else None
    return first if isinstance(first, Mapping) else {}


def _moment(value: Any) -> datetime | None:
    with suppress(ValueError, OverflowError):
        return parse_timestamp(value) if isinstance(value, str) and value else None
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
