"""The headers of a dead letter whose run failed for infrastructure reasons. Pure.

They give the reason and the history of every attempt.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from solstice_common.broker.headers import (
    DETAIL_HEADER,
    HISTORY_HEADER,
    REASON_HEADER,
    RUN_HEADER,
    SIGNATURE_HEADER,
)
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, Reason
from solstice_orchestrator.store.protocol import OutboxKind, OutboxMessage
from solstice_orchestrator.store.records.changes import Attempt
from solstice_orchestrator.store.records.rows import timestamp

MAX_HISTORY: Final = 4096
"""In bytes, like the next two. All headers, with a signature's 653, of a message must fit one AMQP frame: the broker refuses a larger message
at each try, and everything behind it in the outbox waits. These fit the 8 KiB that RabbitMQ 4 accepts at least.
"""
MAX_DETAIL: Final = 2048
MAX_DETAIL_OF_ATTEMPT: Final = 400


def dead_letter_headers(
    tries: Sequence[tuple[str, Attempt]], reason: Reason | None, detail: str
) -> Mapping[str, str] | None:
    """Return the headers of the dead letter; None without an infrastructure failure.

    `tries`: every attempt at the jobs that errored, with the job's name, in order. `reason` and `detail` are those of
    the run; without a reason the last infrastructure failure counts.
    """
    if reason is None:
        spoiled = [attempt for _, attempt in tries if attempt.reason in INFRASTRUCTURE]
        if spoiled:
            reason, detail = spoiled[-1].reason, spoiled[-1].detail
    if reason not in INFRASTRUCTURE:
        return None
    return {
        REASON_HEADER: reason.value,
        DETAIL_HEADER: _cut(detail, MAX_DETAIL),
        HISTORY_HEADER: "\n".join(_fitting([_line(name, attempt) for name, attempt in tries])),
    }


def runs_of_dead_letters(messages: Iterable[OutboxMessage]) -> list[str]:
    """Return the runs whose requests are dead letters among these messages."""
    return [
        message.headers.get(RUN_HEADER, "") for message in messages if message.kind is OutboxKind.DEAD_LETTER
    ]


def with_signatures(
    messages: Sequence[OutboxMessage], signatures: Mapping[str, str]
) -> Sequence[OutboxMessage]:
    """Return the messages; dead letters carry the signatures of their requests, by run."""
    return [
        replace(message, headers={**message.headers, SIGNATURE_HEADER: signatures[run_id]})
        if message.kind is OutboxKind.DEAD_LETTER
        and (run_id := message.headers.get(RUN_HEADER, "")) in signatures
        else message
        for message in messages
    ]


def _line(name: str, attempt: Attempt) -> str:
    detail = _cut(attempt.detail.replace("\n", " "), MAX_DETAIL_OF_ATTEMPT)
    return (
        f"{name} #{attempt.number} on {attempt.worker_id}, {timestamp(attempt.started_at)} to "
        f"{timestamp(attempt.finished_at)}: {attempt.reason.value}" + (f" ({detail})" if detail else "")
    )


def _cut(text: str, most: int) -> str:
    """Return the text, or its beginning and `…`, in at most `most` bytes of UTF-8."""
    data = text.encode(errors="replace")
    return text if len(data) <= most else f"{data[: most - len('…'.encode())].decode(errors='ignore')}…"


def _size(line: str) -> int:
    return len(line.encode()) + 1


def _fitting(lines: Sequence[str]) -> Sequence[str]:
    """Return all lines, or as many first and last ones as fit.

    A line between them counts those that are left out.
    """
    bytes_left, shown = MAX_HISTORY - 64, 0
    first: list[str] = []
    last: list[str] = []
    if sum(map(_size, lines)) <= MAX_HISTORY:
        return lines
    while shown < len(lines):
        line = lines[len(first)] if len(first) <= len(last) else lines[-1 - len(last)]
        bytes_left -= _size(line)
        if bytes_left < 0:
            break
        (first if len(first) <= len(last) else last).append(line)
        shown += 1
    return [*first, f"... {len(lines) - shown} attempts more ...", *reversed(last)]
