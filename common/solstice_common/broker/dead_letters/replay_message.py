"""Makes the message that a replay publishes: the original with one more history line. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.broker.headers import (
    ATTEMPT_HEADER,
    DETAIL_HEADER,
    HISTORY_HEADER,
    QUEUE_HEADER,
    REASON_HEADER,
    REFUSED_AT_HEADER,
    REFUSED_BY_HEADER,
    REPLAY_HEADER,
    without_broker_headers,
)
from solstice_common.broker.protocol import HELD_BODY_BYTES, Message
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_common.messages.priorities import class_in
from solstice_common.topology import Route
from solstice_common.values.times import format_timestamp

MAX_HISTORY: Final = 4096
"""In bytes; the same limit as for a run's history: all headers of a message must fit one AMQP frame."""
MAX_DETAIL: Final = 400
_OF_THE_REFUSAL: Final = frozenset(
    {
        REASON_HEADER,
        DETAIL_HEADER,
        QUEUE_HEADER,
        REFUSED_AT_HEADER,
        REFUSED_BY_HEADER,
        ATTEMPT_HEADER,
        HISTORY_HEADER,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReplayable:
    """A message whose replay would have no effect; it stays in its queue."""

    why: str
    """A sentence that says what to do instead."""


def replay_message(
    found: DeadLetterFacts, route: Route, *, replay_id: str, by: str, at: datetime
) -> Message | NotReplayable:
    """Return the message to publish again, on the route that its priority class has now.

    It keeps its idempotency key and every other header that our messages can carry (texts, numbers,
    booleans); the broker's headers and those of the refusal are left out. `x-solstice-attempt` counts on.
    """
    if why := reason_to_stay(found):
        return NotReplayable(why=why)
    dead_letter = found.dead_letter
    of_class = route.of(class_in(dead_letter.body))
    line = f"replayed {format_timestamp(at)} by {by}: {found.reason}" + _since(found) + _because(found)
    unchanged = {
        name: value
        for name, value in without_broker_headers(dead_letter.headers).items()
        if isinstance(value, str | int | bool) and name not in _OF_THE_REFUSAL
    }
    return Message(
        exchange=of_class.exchange,
        routing_key=of_class.routing_key,
        body=dead_letter.body,
        type=dead_letter.type or route.routing_key,
        correlation_id=dead_letter.correlation_id,
        headers=unchanged
        | {
            ATTEMPT_HEADER: found.attempt + 1,
            HISTORY_HEADER: "\n".join(newest([*found.history, line])),
            REPLAY_HEADER: replay_id,
        },
        priority=dead_letter.priority or None,
        content_type=dead_letter.content_type or "application/json",
        app_id=dead_letter.app_id or "solstice-ci",
        timestamp=dead_letter.timestamp or at,
    )


def reason_to_stay(found: DeadLetterFacts) -> str:
    """Return why a replay would have no effect; empty when it would have one.

    It says what to do instead.
    """
    if found.run_id:
        return f"its request is run {found.run_id} already, so it would be a duplicate: 'solstice rerun {found.run_id}' builds it again"
    if found.size > HELD_BODY_BYTES:
        return (
            f"it has {found.size} bytes, and every service refuses more than {MAX_MESSAGE_BYTES}: drop it, or write "
            "it to a file with 'solstice dlq export'"
        )
    return ""


def newest(lines: Sequence[str]) -> Sequence[str]:
    """Return all lines, or a line that counts those left out, and the last ones."""
    bytes_left, unchanged = MAX_HISTORY - 64, 0
    for line in reversed(lines):
        bytes_left -= len(line.encode(errors="replace")) + 1
        if bytes_left < 0:
            break
        unchanged += 1
    left_out = len(lines) - unchanged
    return [f"... {left_out} lines before ...", *lines[left_out:]] if left_out else lines


def came_back(dead_letter: DeadLetter, replay_id: str) -> bool:
    """Whether this message was published by that replay, and refused again."""
    return dead_letter.headers.get(REPLAY_HEADER) == replay_id


def _since(found: DeadLetterFacts) -> str:
    return "" if found.dead_since is None else f" since {format_timestamp(found.dead_since)}"


def _because(found: DeadLetterFacts) -> str:
    detail = found.detail.replace("\n", " ")[:MAX_DETAIL]
    return f" ({detail})" if detail else ""
