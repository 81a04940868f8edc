"""Confirms, returns and the end of a channel decide the outcomes of its messages."""

import asyncio

import pytest
from pamqp import commands as spec
from pamqp.header import ContentHeader

from solstice_common.broker.links.publish_calls import PendingMessage, PublishCall
from solstice_common.broker.protocol import PublishStatus
from solstice_common.broker.rabbitmq.frames import UnreadHeader
from solstice_common.broker.rabbitmq.publisher import Envelope, Unconfirmed

CONFIRMED, UNROUTABLE, REJECTED, UNKNOWN = PublishStatus
NO_EXCHANGE = "NOT_FOUND - no exchange 'gone' in vhost '/'"


def header(message_id: str | None) -> UnreadHeader:
    return UnreadHeader(ContentHeader(properties=spec.Basic.Properties(message_id=message_id)).marshal())


class SentMessages:
    """Messages that were put on one channel, in order."""

    def __init__(self, *exchanges: str, body: bytes = b"") -> None:
        self.freed = 0
        self.channel = Unconfirmed(self._on_capacity)
        future = asyncio.get_running_loop().create_future()
        self.call = PublishCall([None] * len(exchanges), len(exchanges), future)
        self.ids = []
        for index, exchange in enumerate(exchanges):
            envelope = Envelope(exchange=exchange, routing_key="k", properties=str.encode, body=body)
            self.ids.append(self.channel.next_message_id())
            self.channel.add(PendingMessage(self.call, index, envelope))

    def _on_capacity(self) -> None:
        self.freed += 1

    @property
    def statuses(self) -> list[PublishStatus | None]:
        return [None if outcome is None else outcome.status for outcome in self.call.outcomes]

    def give_back(self, index: int) -> None:
        self.channel.returned(spec.Basic.Return(312, "NO_ROUTE", "x", "k"), header(self.ids[index]))


async def test_a_multiple_ack_confirms_everything_up_to_it() -> None:
    wire = SentMessages("x", "x", "x", "x")
    wire.channel.confirmed(spec.Basic.Ack(3, multiple=True))
    assert wire.statuses == [CONFIRMED, CONFIRMED, CONFIRMED, None]
    assert (len(wire.channel), wire.freed, wire.call.done.done()) == (1, 1, False)
    wire.channel.confirmed(spec.Basic.Ack(4))
    assert wire.call.done.done()


async def test_confirms_out_of_order_and_overlapping_settle_each_message_once() -> None:
    wire = SentMessages("x", "x", "x", "x")
    wire.channel.confirmed(spec.Basic.Ack(2))
    wire.channel.confirmed(spec.Basic.Nack(3, multiple=True))
    wire.channel.confirmed(spec.Basic.Ack(4, multiple=True))
    assert wire.statuses == [REJECTED, CONFIRMED, REJECTED, CONFIRMED]
    assert len(wire.channel) == 0


async def test_returns_in_flight_together_reach_their_own_messages() -> None:
    wire = SentMessages("x", "x", "x")
    wire.give_back(0)
    wire.give_back(2)
    wire.channel.confirmed(spec.Basic.Ack(3, multiple=True))
    assert wire.statuses == [UNROUTABLE, CONFIRMED, UNROUTABLE]
    assert len(set(wire.ids)) == 3


@pytest.mark.parametrize("message_id", [None, "", "x", "-", "abc-99", "abc-x"])
async def test_a_return_that_is_not_ours_changes_nothing(message_id: str | None) -> None:
    wire = SentMessages("x")
    wire.channel.returned(spec.Basic.Return(312, "NO_ROUTE"), header(message_id))
    wire.channel.confirmed(spec.Basic.Ack(1))
    assert wire.statuses == [CONFIRMED]


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        ("CONNECTION_FORCED - broker forced connection closure", [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]),
        (NO_EXCHANGE, [UNKNOWN, REJECTED, UNKNOWN, REJECTED]),
        (
            "ACCESS_REFUSED - access to exchange 'gone' in vhost '/' refused",
            [UNKNOWN, REJECTED, UNKNOWN, REJECTED],
        ),
    ],
    ids=["link lost", "exchange missing", "exchange forbidden"],
)
async def test_only_what_the_broker_blames_is_rejected(why: str, expected: list[PublishStatus]) -> None:
    wire = SentMessages("x", "gone", "x", "gone")
    wire.channel.lost(why)
    assert wire.statuses == expected
    assert {outcome.detail for outcome in wire.call.outcomes if outcome} == {why}


async def test_an_exchange_deleted_meanwhile_may_have_taken_all_but_the_last() -> None:
    wire = SentMessages("gone", "gone", "gone")
    wire.channel.confirmed(spec.Basic.Ack(1))
    wire.channel.lost(NO_EXCHANGE)
    assert wire.statuses == [CONFIRMED, UNKNOWN, REJECTED]


async def test_a_message_that_is_too_large_is_rejected() -> None:
    wire = SentMessages("x", body=b"x" * 11)
    wire.channel.lost("PRECONDITION_FAILED - message size 11 is larger than configured max size 10")
    assert wire.statuses == [REJECTED]
