"""The ack ledger against a model of RabbitMQ's channel.

The channel closes for an unknown tag (notes on batch acks).
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands as spec

from solstice_common.broker.rabbitmq.acks import AckAction, AckLedger, encode

ACK, REQUEUE, DROP = AckAction


class ModelChannel:
    """What RabbitMQ does with the frames (rabbit_channel.erl, collect_acks)."""

    def __init__(self) -> None:
        self.unacked: list[int] = []
        self.outcomes: dict[int, AckAction] = {}

    def receive(self, frame: spec.Basic.Ack | spec.Basic.Reject | spec.Basic.Nack) -> None:
        tag = frame.delivery_tag
        assert tag in self.unacked, f"unknown delivery tag {tag}: the broker closes the channel"
        outcome = ACK if isinstance(frame, spec.Basic.Ack) else REQUEUE if frame.requeue else DROP
        multiple = not isinstance(frame, spec.Basic.Reject) and frame.multiple
        for each in [one for one in self.unacked if one == tag or (multiple and one < tag)]:
            self.unacked.remove(each)
            self.outcomes[each] = outcome


step = st.one_of(
    st.just("deliver"),
    st.dictionaries(st.integers(min_value=0, max_value=40), st.sampled_from(AckAction), max_size=20),
)


@given(st.lists(step, max_size=60))
def test_every_delivery_is_settled_once_and_as_decided(steps: list[str | dict[int, AckAction]]) -> None:
    ledger, channel, decided, delivered = AckLedger(), ModelChannel(), dict[int, AckAction](), 0
    for each in steps:
        if isinstance(each, str):
            delivered += 1
            channel.unacked.append(delivered)
            ledger.delivered(delivered)
            continue
        for frame in ledger.settle(each):
            channel.receive(frame)
        for tag, what in each.items():
            if 1 <= tag <= delivered:
                decided.setdefault(tag, what)
        assert channel.outcomes == decided
        assert ledger.open == len(channel.unacked)
    rest = ledger.give_back()
    assert (rest is None) == (not channel.unacked)
    if rest is not None:
        left = list(channel.unacked)
        channel.receive(rest)
        assert [channel.outcomes[tag] for tag in left] == [REQUEUE] * len(left)
    assert not channel.unacked
    assert ledger.open == 0


def ledger_of(count: int) -> AckLedger:
    ledger = AckLedger()
    for tag in range(1, count + 1):
        ledger.delivered(tag)
    return ledger


def settled_on_channel(frames: list[spec.Basic.Ack | spec.Basic.Reject]) -> list[tuple[str, int, bool]]:
    return [
        ("ack", frame.delivery_tag or 0, frame.multiple)
        if isinstance(frame, spec.Basic.Ack)
        else ("reject", frame.delivery_tag or 0, frame.requeue)
        for frame in frames
    ]


def test_a_whole_batch_is_one_frame() -> None:
    assert settled_on_channel(ledger_of(64).settle(dict.fromkeys(range(1, 65), ACK))) == [("ack", 64, True)]


def test_acks_behind_an_undecided_delivery_go_one_by_one() -> None:
    ledger = ledger_of(5)
    assert settled_on_channel(ledger.settle({1: ACK, 2: ACK, 4: ACK, 5: ACK})) == [
        ("ack", 2, True),
        ("ack", 4, False),
        ("ack", 5, False),
    ]
    assert settled_on_channel(ledger.settle({3: ACK})) == [("ack", 3, False)]


def test_a_multiple_never_covers_what_was_refused() -> None:
    assert settled_on_channel(ledger_of(4).settle({1: ACK, 2: DROP, 3: REQUEUE, 4: ACK})) == [
        ("reject", 2, False),
        ("reject", 3, True),
        ("ack", 4, True),
    ]


def test_what_is_settled_already_is_not_reported_again() -> None:
    ledger = ledger_of(2)
    ledger.settle({1: ACK})
    assert ledger.settle({1: DROP}) == []
    assert ledger.settle({7: ACK}) == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_giving_back_is_one_frame(count: int) -> None:
    rest = ledger_of(count).give_back()
    if count == 0:
        assert rest is None
    else:
        assert rest is not None
        assert (rest.delivery_tag, rest.multiple, rest.requeue) == (count, True, True)
        assert encode([rest], 1)[-1:] == b"\xce"
