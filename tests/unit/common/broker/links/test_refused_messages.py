"""Refused messages are published as dead letters, and what is not confirmed is logged."""

from collections.abc import Sequence

from structlog.testing import capture_logs

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.links.refused_messages import publish_refused
from solstice_common.broker.protocol import CONFIRMED, Delivered, Published, PublishStatus
from solstice_common.telemetry.log_events import LogEvent

WHY = Refuse(reason="not_json", detail="a comma is missing")
REFUSED = [(Delivered(body=body, tag=body, correlation_id=body.decode()), WHY) for body in (b"a", b"b", b"c")]


class Exchange:
    """Confirms all but what it is told to reject."""

    def __init__(self, *, rejected: bytes = b"") -> None:
        self.published: list[bytes] = []
        self._rejected = rejected

    async def publish(self, messages: Sequence[bytes]) -> Sequence[Published]:
        self.published += messages
        return [
            Published(PublishStatus.REJECTED, "full") if each == self._rejected else CONFIRMED
            for each in messages
        ]


def write(exchange: str, delivery: Delivered, why: Refuse) -> bytes:
    assert (exchange, why) == ("dlx", WHY)
    if delivery.body == b"b":
        raise ValueError("cannot be written")
    return delivery.body


async def test_one_that_cannot_be_written_or_is_rejected_leaves_the_others_confirmed() -> None:
    exchange = Exchange(rejected=b"c")
    with capture_logs() as logs:
        confirmed = await publish_refused(
            REFUSED, queue="jobs", exchange="dlx", write=write, publish=exchange.publish
        )
    assert (confirmed, exchange.published) == ([True, False, False], [b"a", b"c"])
    assert {each["event"] for each in logs} == {LogEvent.DEAD_LETTER_FAILED}
    assert [(each.get("request_id"), each.get("detail")) for each in logs] == [
        (None, None),  # with the traceback
        ("b", "the dead letter could not be written"),
        ("c", "full"),
    ]


async def test_without_a_dead_letter_exchange_nothing_is_published_or_confirmed() -> None:
    exchange = Exchange()
    with capture_logs() as logs:
        confirmed = await publish_refused(
            REFUSED, queue="jobs", exchange=None, write=write, publish=exchange.publish
        )
    assert (confirmed, exchange.published) == ([False] * 3, [])
    assert [each["detail"] for each in logs] == ["no dead-letter exchange was declared"] * 3
