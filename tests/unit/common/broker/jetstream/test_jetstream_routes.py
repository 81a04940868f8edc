"""The queues that a message reaches."""

import pytest

from solstice_common.broker.jetstream.jetstream_routes import RoutingTable, read_table
from solstice_common.broker.protocol import PublishStatus
from solstice_common.errors import TopologyMismatch
from solstice_common.topology import STATUSES, Binding, Exchange, QueueType, Topology

DECLARED = RoutingTable().including(STATUSES.topology(QueueType.QUORUM))


def test_direct_exchange_asks_for_the_key_and_a_fanout_does_not() -> None:
    assert DECLARED.route("solstice.statuses", "jobstatus.v1") == ("solstice.statuses.v1",)
    assert DECLARED.route("solstice.statuses.dlx", "whatever") == ("solstice.statuses.v1.dlq",)


def test_what_is_not_bound_is_unroutable_and_what_has_no_exchange_rejected() -> None:
    unroutable = DECLARED.route("solstice.statuses", "nobody.v1")
    missing = DECLARED.route("nowhere", "jobstatus.v1")
    assert not isinstance(unroutable, tuple)
    assert not isinstance(missing, tuple)
    assert (unroutable.status, missing.status) == (PublishStatus.UNROUTABLE, PublishStatus.REJECTED)
    assert "nowhere" in missing.detail


def test_message_reaches_each_bound_queue_once_in_the_order_of_their_names() -> None:
    bindings = tuple(Binding(exchange="all", queue=name, routing_key="") for name in ("b", "a", "b"))
    table = RoutingTable().including(
        Topology(exchanges=(Exchange(name="all", kind="fanout"),), queues=(), bindings=bindings)
    )
    assert table.route("all", "") == ("a", "b")


def test_table_is_kept_as_one_short_line() -> None:
    table = RoutingTable({"e": "direct"}, frozenset({("e", "k", "q")}))
    assert table.encode() == b'{"exchanges":{"e":"direct"},"bindings":[["e","k","q"]]}'


def test_kind_that_we_do_not_know_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown kinds of exchanges: \['topic'\]"):
        read_table(b'{"exchanges": {"x": "topic"}, "bindings": []}')


def test_table_survives_the_way_to_the_server() -> None:
    assert read_table(DECLARED.encode()) == DECLARED
    assert read_table(None) == RoutingTable()
    assert DECLARED.including(STATUSES.topology(QueueType.QUORUM)) == DECLARED


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b'{"exchanges": {}}', b'{"exchanges": {"x": "topic"}, "bindings": []}']
)
def test_table_that_was_changed_by_hand_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_table(text)


def test_exchange_of_another_kind_is_a_mismatch() -> None:
    wrong = Topology(exchanges=(Exchange(name="solstice.statuses", kind="fanout"),), queues=(), bindings=())
    with pytest.raises(TopologyMismatch, match="direct") as raised:
        DECLARED.including(wrong)
    assert "exchange 'solstice.statuses'" in str(raised.value)
