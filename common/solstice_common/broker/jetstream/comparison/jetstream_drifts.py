"""Names what is wrong with streams and consumers, and the `nats` command that corrects it. Pure.

`jetstream_streams` finds the differences for which a service refuses a stream; this module adds those that
only cost something.

Source: docs.nats.io/nats-concepts/jetstream (streams, consumers), and the flags of `nats stream edit`.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from nats.js.api import ConsumerConfig, StorageType, StreamConfig

from solstice_common.broker.jetstream.jetstream_names import DURABLE, TOPOLOGY_BUCKET, stream_of
from solstice_common.broker.jetstream.jetstream_streams import (
    DEDUPE_SECONDS,
    consumer_differences,
    stream_differences,
)
from solstice_common.broker.topology_check import DECLARE, TopologyDifference
from solstice_common.topology import Queue

LEAST_ACK_WAIT_SECONDS: Final = 5.0
"""With less, messages of a process that stalls for a moment are delivered a second time."""
_EDITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "subjects": "--subjects={queue}",
        "max_age": "--max-age=-1",
        "max_msgs_per_subject": "--max-msgs-per-subject=-1",
        "discard": "--discard=new",
    }
)
"""The flag of `nats stream edit` that corrects a difference; without a flag it cannot be changed in place."""


def stream_drifts(queue: Queue, found: StreamConfig) -> Iterator[TopologyDifference]:
    """Yield the differences between a queue's stream and what the queue needs."""
    stream, label = stream_of(queue.name), f"stream {stream_of(queue.name)}"
    edit = f"nats stream edit {stream} "
    recreate = f"let it run empty, stop the services, nats stream rm {stream}, then: {DECLARE}"
    for difference in stream_differences(found, queue):
        name = difference.partition("=")[0]
        if name != "arguments":  # arguments are compared as on every broker
            flag = _EDITS.get(name)
            remedy = recreate if flag is None else edit + flag.format(queue=queue.name)
            yield TopologyDifference(object=label, difference=f"has {difference}", remedy=remedy)
    for is_so, difference, remedy in (
        (found.no_ack, "confirms nothing (no_ack): publishers wait for confirms without end", edit + "--ack"),
        (
            found.duplicate_window < DEDUPE_SECONDS,
            f"remembers ids for {found.duplicate_window:g} s: what is published again later is there twice",
            edit + f"--dupe-window={DEDUPE_SECONDS:g}s",
        ),
        (found.mirror is not None, "mirrors another stream: no publisher can write to it", recreate),
        (bool(found.sources), "takes messages of other streams (sources)", edit + "without its sources"),
        (found.republish is not None, "republishes our messages to another subject", recreate),
        (found.sealed, "is sealed: it takes no messages, and acked ones stay", recreate),
    ):
        if is_so:
            yield TopologyDifference(object=label, difference=difference, remedy=remedy)


def consumer_drifts(queue: Queue, consumers: Iterable[ConsumerConfig]) -> Iterator[TopologyDifference]:
    """Yield the differences of the consumers of a queue's stream; ours may be missing."""
    stream, own_is_there = stream_of(queue.name), False
    for found in consumers:
        name = found.durable_name or found.name or ""
        label, remove = f"consumer {stream} > {name}", f"nats consumer rm {stream} {name}"
        if name != DURABLE:
            yield TopologyDifference(
                object=label, difference="is not ours: it takes messages that no service sees", remedy=remove
            )
            continue
        own_is_there = True
        for difference in (*consumer_differences(found), *_costs(found)):
            yield TopologyDifference(
                object=label, difference=f"has {difference}", remedy=f"{remove}, then: {DECLARE}"
            )
    if not own_is_there:
        yield TopologyDifference(
            object=f"consumer {stream} > {DURABLE}", difference="is missing", remedy=DECLARE
        )


def subject_drift(queue: Queue, taken_by: str) -> TopologyDifference:
    """Another stream takes the subject of a queue whose own stream is missing."""
    return TopologyDifference(
        object=f"stream {taken_by}",
        difference=f"takes the subject {queue.name}: the stream {stream_of(queue.name)} cannot be made",
        remedy=f"nats stream edit {taken_by} --subjects=..., without {queue.name}; then: {DECLARE}",
    )


def bucket_drifts(found: StreamConfig) -> Iterator[TopologyDifference]:
    """Yield the differences of the bucket with the exchanges and bindings."""
    recreate = f"nats kv rm {TOPOLOGY_BUCKET}, then: {DECLARE}"
    if found.max_age:
        yield TopologyDifference(
            object=f"bucket {TOPOLOGY_BUCKET}",
            difference=f"forgets exchanges and bindings after {found.max_age:g} s (ttl)",
            remedy=recreate,
        )
    if found.storage is StorageType.MEMORY:
        yield TopologyDifference(
            object=f"bucket {TOPOLOGY_BUCKET}",
            difference="is in memory: exchanges and bindings end with the server",
            remedy=recreate,
        )


def _costs(found: ConsumerConfig) -> Iterator[str]:
    """Yield the properties that a service accepts, and what they cost."""
    if found.ack_wait is not None and found.ack_wait < LEAST_ACK_WAIT_SECONDS:
        yield f"ack_wait={found.ack_wait:g} s: after a stall that long a message is delivered twice"
    if found.backoff:
        yield "backoff: it stands for ack_wait, and no service renews it in time"
    if (found.max_ack_pending or 0) > 0:
        yield f"max_ack_pending={found.max_ack_pending}: all processes together hold no more"
    if found.headers_only:
        yield "headers_only: messages come without their body"
    if found.deliver_subject:
        yield f"deliver_subject={found.deliver_subject}: services pull, and are refused"
    if found.inactive_threshold:
        yield f"inactive_threshold={found.inactive_threshold:g} s: it ends when no service asks for so long"
    if found.mem_storage:
        yield "mem_storage: after a restart of the server all that was delivered comes again"
