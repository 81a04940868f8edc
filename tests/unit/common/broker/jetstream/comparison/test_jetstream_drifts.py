"""The differences that `topology check` reports of streams, consumers and the bucket."""

import pytest
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
)

from solstice_common.broker.jetstream.comparison.jetstream_drifts import (
    LEAST_ACK_WAIT_SECONDS,
    bucket_drifts,
    consumer_drifts,
    stream_drifts,
)
from solstice_common.broker.jetstream.jetstream_streams import DEDUPE_SECONDS
from solstice_common.topology import Queue

QUEUE = Queue(name="orders.v1", arguments={"x-queue-type": "quorum"})
STREAM = StreamConfig(
    name="orders_v1",
    subjects=["orders.v1"],
    retention=RetentionPolicy.WORK_QUEUE,
    storage=StorageType.FILE,
    discard=DiscardPolicy.NEW,
    duplicate_window=DEDUPE_SECONDS,
)
CONSUMER = ConsumerConfig(
    durable_name="solstice",
    ack_policy=AckPolicy.EXPLICIT,
    ack_wait=LEAST_ACK_WAIT_SECONDS,
    max_deliver=-1,
    max_ack_pending=-1,
)


def test_what_is_as_declared_is_not_named() -> None:
    assert list(stream_drifts(QUEUE, STREAM)) == []
    assert list(consumer_drifts(QUEUE, [CONSUMER])) == []


@pytest.mark.parametrize(
    ("changes", "difference", "remedy"),
    [
        (
            {"max_msgs_per_subject": 5, "discard": DiscardPolicy.OLD},
            "has max_msgs_per_subject=5 with discard=old (drops messages)",
            "nats stream edit orders_v1 --max-msgs-per-subject=-1",
        ),
        (
            {"mirror": StreamSource(name="other")},
            "mirrors another stream",
            "let it run empty, stop the services",
        ),
        (
            {"republish": RePublish(src=">", dest="copies.>")},
            "republishes our messages",
            "let it run empty, stop the services",
        ),
        ({"sealed": True}, "is sealed", "let it run empty, stop the services"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_difference_of_the_stream_is_named(
    changes: dict[str, object], difference: str, remedy: str
) -> None:
    (drift,) = stream_drifts(QUEUE, STREAM.evolve(**changes))
    assert drift.object == "stream orders_v1"
    assert drift.difference.startswith(difference)
    assert drift.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"ack_policy": AckPolicy.NONE}, "has ack_policy=none"),
        ({"backoff": [1.0, 2.0], "max_deliver": -1}, "has backoff"),
        ({"headers_only": True}, "has headers_only"),
        ({"deliver_subject": "inbox"}, "has deliver_subject=inbox"),
        ({"inactive_threshold": 60.0}, "has inactive_threshold=60 s"),
        ({"mem_storage": True}, "has mem_storage"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_difference_of_the_consumer_is_named(changes: dict[str, object], difference: str) -> None:
    (drift,) = consumer_drifts(QUEUE, [CONSUMER.evolve(**changes)])
    assert drift.object == "consumer orders_v1 > solstice"
    assert drift.difference.startswith(difference)
    assert drift.remedy == "nats consumer rm orders_v1 solstice, then: solstice topology declare"


def test_a_bucket_in_memory_is_named() -> None:
    (drift,) = bucket_drifts(StreamConfig(name="KV_solstice_topology", storage=StorageType.MEMORY))
    assert drift.difference == "is in memory: exchanges and bindings end with the server"
    assert drift.remedy == "nats kv rm solstice_topology, then: solstice topology declare"
    (drift,) = bucket_drifts(
        StreamConfig(name="KV_solstice_topology", storage=StorageType.FILE, max_age=60.0)
    )
    assert drift.difference == "forgets exchanges and bindings after 60 s (ttl)"
    assert drift.remedy == "nats kv rm solstice_topology, then: solstice topology declare"
    assert list(bucket_drifts(StreamConfig(name="KV_solstice_topology", storage=StorageType.FILE))) == []


def test_a_short_wait_for_an_ack_and_a_limit_are_named() -> None:
    assert LEAST_ACK_WAIT_SECONDS == 5.0
    (drift,) = consumer_drifts(QUEUE, [CONSUMER.evolve(ack_wait=4.9)])
    assert drift.difference.startswith("has ack_wait=4.9 s")
    (drift,) = consumer_drifts(QUEUE, [CONSUMER.evolve(max_ack_pending=1)])
    assert drift.difference == "has max_ack_pending=1: all processes together hold no more"
    assert list(consumer_drifts(QUEUE, [CONSUMER.evolve(max_ack_pending=0)])) == []


def test_a_missing_consumer_is_named() -> None:
    (drift,) = consumer_drifts(QUEUE, [])
    assert (drift.object, drift.difference) == ("consumer orders_v1 > solstice", "is missing")


def test_consumers_of_others_are_named_beside_ours() -> None:
    stranger, nameless = ConsumerConfig(name="spy"), ConsumerConfig()
    found = [*consumer_drifts(QUEUE, [stranger, nameless, CONSUMER.evolve(headers_only=True)])]
    assert [each.object for each in found] == [
        "consumer orders_v1 > spy",
        "consumer orders_v1 > ",
        "consumer orders_v1 > solstice",
    ]
    assert found[0].remedy == "nats consumer rm orders_v1 spy"


def test_what_can_be_changed_in_place_is_edited_and_all_else_made_again() -> None:
    (drift,) = stream_drifts(QUEUE, STREAM.evolve(max_age=60.0))
    assert drift.remedy == "nats stream edit orders_v1 --max-age=-1"
    (drift,) = stream_drifts(QUEUE, STREAM.evolve(storage=StorageType.MEMORY))
    assert drift.remedy.startswith("let it run empty, stop the services, nats stream rm orders_v1")
