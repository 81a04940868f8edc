"""Properties of a stream or consumer that lose messages, and those of the operator."""

import pytest
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from solstice_common.broker.jetstream.jetstream_streams import consumer_differences, stream_differences
from solstice_common.topology import Queue

QUEUE = Queue(name="orders.v1", arguments={"x-queue-type": "quorum"})
DECLARED_STREAM = StreamConfig(
    name="orders_v1",
    subjects=["orders.v1"],
    retention=RetentionPolicy.WORK_QUEUE,
    storage=StorageType.FILE,
    discard=DiscardPolicy.NEW,
    metadata={"solstice-arguments": '{"x-queue-type":"quorum"}', "_nats.ver": "2.15.1"},
)


def test_stream_as_we_make_it_differs_in_nothing() -> None:
    assert stream_differences(DECLARED_STREAM, QUEUE) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"num_replicas": 3},
        {"max_msgs": 1000},
        {"max_bytes": 1 << 30},
        {"metadata": None},
        {"metadata": {"team": "otters"}},
        {"duplicate_window": 600.0},
        {"discard": DiscardPolicy.OLD},
    ],
    ids=str,
)
def test_replicas_and_limits_that_reject_are_the_operators(changes: dict[str, object]) -> None:
    assert stream_differences(DECLARED_STREAM.evolve(**changes), QUEUE) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"subjects": ["orders.>"]}, "subjects"),
        ({"retention": RetentionPolicy.LIMITS}, "retention"),
        ({"storage": StorageType.MEMORY}, "storage=memory"),
        ({"persist_mode": PersistMode.ASYNC}, "persist_mode"),
        ({"max_age": 3600.0}, "max_age"),
        ({"discard": DiscardPolicy.OLD, "max_msgs": 1000}, "discard"),
        ({"discard": DiscardPolicy.OLD, "max_msgs_per_subject": 1}, "max_msgs_per_subject"),
        ({"metadata": {"solstice-arguments": "{}"}}, "arguments={}"),
    ],
    ids=str,
)
def test_what_loses_messages_is_a_difference(changes: dict[str, object], named: str) -> None:
    (difference,) = stream_differences(DECLARED_STREAM.evolve(**changes), QUEUE)
    assert named in difference


def test_consumer_that_gives_up_or_filters_is_a_difference() -> None:
    declared_consumer = ConsumerConfig(
        durable_name="solstice", ack_policy=AckPolicy.EXPLICIT, max_deliver=-1, ack_wait=60.0
    )
    assert consumer_differences(declared_consumer) == []
    assert consumer_differences(declared_consumer.evolve(max_deliver=5)) == ["max_deliver=5"]
    (filtered,) = consumer_differences(declared_consumer.evolve(filter_subject="orders.v1"))
    assert "orders.v1" in filtered
    (unacked,) = consumer_differences(declared_consumer.evolve(ack_policy=AckPolicy.NONE))
    assert "ack_policy" in unacked
