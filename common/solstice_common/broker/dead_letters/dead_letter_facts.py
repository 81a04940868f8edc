"""Reads from a dead letter why and when it was refused, and its request. Pure."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.messages import Priority
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_common.messages.priorities import named_class, numbered_class
from solstice_common.values.times import format_timestamp, parse_timestamp

UNKNOWN: Final = "unknown"
"""The reason where neither we nor the broker gave one."""


@dataclass(frozen=True, kw_only=True)
class DeadLetterFacts:
    """A dead letter and its facts; empty or None where they are unknown."""

    dead_letter: DeadLetter
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

    @property
    def id(self) -> str:
        return self.dead_letter.id

    def document(self) -> dict[str, Any]:
        """One line of a list, as JSON."""
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
            "bytes": len(self.dead_letter.body),
        }

    def whole_document(self) -> dict[str, Any]:
        """Everything about it, as JSON."""
        return self.document() | {
            "refused_by": self.refused_by or None,
            "history": list(self.history),
            "message_id": self.dead_letter.message_id,
            "content_type": self.dead_letter.content_type,
            "headers": dict(self.dead_letter.headers),
            "body": self.dead_letter.body.decode("utf-8", "backslashreplace"),
        }


def facts_of(dead_letter: DeadLetter) -> DeadLetterFacts:
    """Read a dead letter; never fails for any content."""
    headers, fields = dead_letter.headers, _fields(dead_letter.body)
    death = _first_death(headers)
    reason = _text(headers.get("x-solstice-reason")) or _text(death.get("reason")) or UNKNOWN
    detail = _text(headers.get("x-solstice-detail"))
    if reason == "rejected" and len(dead_letter.body) > MAX_MESSAGE_BYTES:
        # No service reads so large a body, not even to publish it with a reason.
        reason = "oversize"
        detail = f"{len(dead_letter.body)} bytes, at most {MAX_MESSAGE_BYTES} are allowed"
    return DeadLetterFacts(
        dead_letter=dead_letter,
        reason=reason,
        detail=detail,
        dead_since=_moment(headers.get("x-solstice-refused-at"))
        or _moment(death.get("time"))
        or dead_letter.timestamp,
        repository=_text(fields.get("repo_full_name")) or _text(fields.get("repo_url")),
        priority=named_class(fields.get("priority")) or numbered_class(dead_letter.priority),
        request_id=dead_letter.correlation_id or _text(fields.get("request_id")),
        run_id=_text(headers.get("x-solstice-run")),
        refused_by=_text(headers.get("x-solstice-refused-by")),
        attempt=attempt if isinstance(attempt := headers.get("x-solstice-attempt"), int) else 1,
        history=_text(headers.get("x-solstice-history")).splitlines(),
    )


def facts_of_each(dead_letters: Sequence[DeadLetter]) -> list[DeadLetterFacts]:
    """Read dead letters, the oldest first; copies of one count once."""
    distinct = {each.id: each for each in reversed(dead_letters)}
    oldest = datetime.min.replace(tzinfo=UTC)
    in_order = [distinct[each] for each in dict.fromkeys(one.id for one in dead_letters)]
    return sorted(map(facts_of, in_order), key=lambda found: found.dead_since or oldest)


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
