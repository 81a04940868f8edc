"""Publishes refused messages as dead letters, where an ack cannot do it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import structlog

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.protocol import Delivery, Published, PublishStatus
from solstice_common.telemetry.log_events import LogEvent

NO_EXCHANGE: Final = Published(PublishStatus.REJECTED, "no dead-letter exchange was declared")
UNWRITABLE: Final = Published(PublishStatus.REJECTED, "the dead letter could not be written")

D = TypeVar("D", bound=Delivery)
M = TypeVar("M")

log = structlog.get_logger(__name__)


async def publish_refused(
    refused: Sequence[tuple[D, Refuse]],
    *,
    queue: str,
    exchange: str | None,
    write: Callable[[str, D, Refuse], M],
    publish: Callable[[Sequence[M]], Awaitable[Sequence[Published]]],
) -> list[bool]:
    """Publish what `write` makes of each to the dead-letter exchange of `queue`.

    Returns whether each is confirmed; the others are logged.
    """
    outcomes: Sequence[Published] = [NO_EXCHANGE] * len(refused)
    if exchange is not None:
        written = [_written(write, exchange, queue, delivery, why) for delivery, why in refused]
        published = iter(await publish([each for each in written if each is not None]))
        outcomes = [UNWRITABLE if each is None else next(published) for each in written]
    for (delivery, why), outcome in zip(refused, outcomes, strict=True):
        if not outcome.confirmed:
            log.error(
                LogEvent.DEAD_LETTER_FAILED,
                queue=queue,
                request_id=delivery.correlation_id,
                reason=why.reason,
                detail=outcome.detail,
            )
    return [outcome.confirmed for outcome in outcomes]


def _written(
    write: Callable[[str, D, Refuse], M], exchange: str, queue: str, delivery: D, why: Refuse
) -> M | None:
    """Return the dead letter; None when a bug prevents it."""
    try:
        return write(exchange, delivery, why)
    except Exception:
        log.exception(LogEvent.DEAD_LETTER_FAILED, queue=queue, reason=why.reason)
        return None
