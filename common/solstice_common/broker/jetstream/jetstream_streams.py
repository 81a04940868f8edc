"""Declares the streams, consumers and routes of a topology on a JetStream server."""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    KeyValueConfig,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import (
    APIError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NotFoundError,
)
from nats.js.kv import KeyValue

from solstice_common.broker.jetstream.jetstream_names import DURABLE, TOPOLOGY_BUCKET, TOPOLOGY_KEY, stream_of
from solstice_common.broker.jetstream.jetstream_routes import RoutingTable, read_table
from solstice_common.broker.jetstream.nats_connection import NO_JETSTREAM, NatsConnection, NatsLost, described
from solstice_common.broker.jetstream.nats_records import is_readable
from solstice_common.errors import TopologyMismatch
from solstice_common.topology import Queue, Topology

ACK_WAIT_SECONDS: Final = 30.0
"""How long a dead consumer keeps its messages; a living one renews them in time."""
DEDUPE_SECONDS: Final = 120.0
"""How long the server remembers the ids of messages."""
MAX_WAITING: Final = 4096
"""Pulls at once on one queue, from all processes."""
ARGUMENTS_KEY: Final = "solstice-arguments"
"""The key of the queue's arguments, as JSON, in the metadata of its stream."""
MAX_PENDING: Final = 1000
"""Messages that are delivered and not settled; a consumer has as many as its prefetch."""
_NAME_IN_USE: Final = 10058
_SECONDS_OF_TIME: Final = len("2026-01-31T12:00:00")
_CONSUMER: Final[Mapping[str, object]] = {
    "ack_policy": "explicit",
    "deliver_policy": "all",
    "max_deliver": -1,
    "filter": "none",
}
_STREAM: Final[Mapping[str, object]] = {
    "retention": "workqueue",
    "storage": "file",
    "max_age": 0,
    "discard": "new",
}


async def declare(
    connection: NatsConnection, topology: Topology, *, ack_wait_seconds: float, replicas: int
) -> RoutingTable:
    """Make sure everything exists; return the server's exchanges and bindings.

    Raises TopologyMismatch when an object exists with other properties, NatsLost when the server does not answer or
    does not allow it.
    """
    try:
        for queue in topology.queues:
            await _declare_queue(connection, queue, replicas=replicas)
            await ensure_consumer(connection, queue.name, ack_wait_seconds=ack_wait_seconds)
        return await _declare_routes(connection, topology, replicas=replicas)
    except APIError as error:
        raise NatsLost(f"the server did not take the declaration: {error.description}") from None


async def require_jetstream(connection: NatsConnection) -> None:
    """Raise NatsLost that says what to do when JetStream is not available."""
    try:
        await connection.call(connection.jetstream.account_info())
    except APIError as error:
        raise NatsLost(f"JetStream is not available: {described(error)}; {NO_JETSTREAM}") from None


async def read_routes(connection: NatsConnection) -> RoutingTable:
    """Return the server's exchanges and bindings; an empty table when it has none. Raises NatsLost."""
    try:
        bucket = await connection.call(connection.jetstream.key_value(TOPOLOGY_BUCKET))
        table, _ = await _read(connection, bucket)
    except NotFoundError:
        return RoutingTable()
    except APIError as error:
        raise NatsLost(f"the exchanges and bindings cannot be read: {error.description}") from None
    return table


async def find_stream(connection: NatsConnection, queue: str) -> StreamInfo | None:
    """Return the stream of a queue; None when there is none. Raises NatsLost."""
    try:
        return await connection.call(connection.jetstream.stream_info(stream_of(queue)))
    except NotFoundError:
        return None
    except APIError as error:
        raise NatsLost(f"the stream of {queue!r} cannot be read: {error.description}") from None


async def oldest_seconds(connection: NatsConnection, stream: StreamInfo) -> float | None:
    """Return how long ago the oldest message of a stream was stored; None without one.

    By the server's clock then, and by ours now. Raises NatsLost.
    """
    if not stream.state.messages:
        return None
    # nats-py reads the time of a first message only with its whole body.
    state = (await _ask(connection, f"STREAM.INFO.{stream.config.name}", {})).get("state", {})
    if not state.get("messages"):
        return None  # it was settled in the meantime
    stored_at = datetime.fromisoformat(state["first_ts"][:_SECONDS_OF_TIME]).replace(tzinfo=UTC)
    return max(0.0, (datetime.now(UTC) - stored_at).total_seconds())


async def ensure_consumer(connection: NatsConnection, queue: str, *, ack_wait_seconds: float) -> float:
    """Make sure that the durable consumer of a queue exists; return its AckWait in seconds.

    An operator's AckWait stays; `add_consumer` would silently change it. NotFoundError without a stream.
    """
    stream, jetstream = stream_of(queue), connection.jetstream
    try:
        found = (await connection.call(jetstream.consumer_info(stream, DURABLE))).config
    except NotFoundError:
        declared = ConsumerConfig(
            durable_name=DURABLE,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_wait_seconds,
            deliver_policy=DeliverPolicy.ALL,
            # We count deliveries ourselves: beyond the server's limit a message would stay forever, without a
            # dead letter.
            max_deliver=-1,
            # The default is 1000 for all processes together.
            max_ack_pending=-1,
            max_waiting=MAX_WAITING,
        )
        found = (await connection.call(jetstream.add_consumer(stream, declared))).config
    if differences := consumer_differences(found):
        raise TopologyMismatch("consumer", f"{stream} > {DURABLE}", _CONSUMER, ", ".join(differences))
    return found.ack_wait or ack_wait_seconds


def consumer_differences(found: ConsumerConfig) -> list[str]:
    """Return the differences between a durable consumer and what we need, in words. Pure."""
    facts = {
        f"ack_policy={_plain(found.ack_policy)}": found.ack_policy in {None, AckPolicy.EXPLICIT},
        f"deliver_policy={_plain(found.deliver_policy)}": found.deliver_policy in {None, DeliverPolicy.ALL},
        f"max_deliver={found.max_deliver}": found.max_deliver in {None, 0, -1},
        f"filter={found.filter_subject or found.filter_subjects}": not (
            found.filter_subject or found.filter_subjects
        ),
    }
    return [fact for fact, holds in facts.items() if not holds]


def stream_differences(found: StreamConfig, queue: Queue) -> list[str]:
    """Return the differences between a stream and what the queue needs, in words. Pure.

    The operator may choose replicas and limits that reject messages, but no limits that drop messages
    silently.
    """
    discards = found.discard == DiscardPolicy.OLD and any(
        limit not in {None, 0, -1} for limit in (found.max_msgs, found.max_bytes)
    )
    facts = {
        f"subjects={found.subjects}": found.subjects == [queue.name],
        f"retention={_plain(found.retention)}": found.retention == RetentionPolicy.WORK_QUEUE,
        f"storage={_plain(found.storage)}": found.storage == StorageType.FILE,
        f"persist_mode={_plain(found.persist_mode)}": found.persist_mode in {None, PersistMode.DEFAULT},
        f"max_age={found.max_age} (drops messages)": not found.max_age,
        f"max_msgs_per_subject={found.max_msgs_per_subject} with discard={_plain(found.discard)} (drops messages)": (
            found.max_msgs_per_subject in {None, 0, -1} or found.discard == DiscardPolicy.NEW
        ),
        f"discard={_plain(found.discard)} with a limit (drops messages)": not discards,
    }
    differences = [fact for fact, holds in facts.items() if not holds]
    # A stream that an operator made has no arguments; they have no meaning for JetStream.
    stored_arguments = (found.metadata or {}).get(ARGUMENTS_KEY)
    if stored_arguments is not None and stored_arguments != _arguments(queue):
        differences.append(f"arguments={stored_arguments}")
    return differences


async def _declare_queue(connection: NatsConnection, queue: Queue, *, replicas: int) -> None:
    found = await find_stream(connection, queue.name)
    if found is None:
        try:
            await connection.call(
                connection.jetstream.add_stream(
                    StreamConfig(
                        name=stream_of(queue.name),
                        description=f"The queue {queue.name} of Solstice CI.",
                        subjects=[queue.name],
                        retention=RetentionPolicy.WORK_QUEUE,
                        storage=StorageType.FILE,
                        discard=DiscardPolicy.NEW,
                        num_replicas=replicas,
                        duplicate_window=DEDUPE_SECONDS,
                        allow_direct=True,
                        metadata={ARGUMENTS_KEY: _arguments(queue)},
                    )
                )
            )
        except APIError as error:
            if error.err_code != _NAME_IN_USE:
                raise
        # Another process may have created it first, with other arguments.
        found = await find_stream(connection, queue.name)
    if found is not None and (differences := stream_differences(found.config, queue)):
        own_settings = {**_STREAM, "subjects": [queue.name], **queue.arguments}
        raise TopologyMismatch("queue", queue.name, own_settings, ", ".join(differences))


async def _declare_routes(connection: NatsConnection, topology: Topology, *, replicas: int) -> RoutingTable:
    """Add the exchanges and bindings to the server's table, by compare and set."""
    jetstream = connection.jetstream
    try:
        bucket = await connection.call(jetstream.key_value(TOPOLOGY_BUCKET))
    except BucketNotFoundError:
        bucket = await connection.call(
            jetstream.create_key_value(KeyValueConfig(bucket=TOPOLOGY_BUCKET, history=1, replicas=replicas))
        )
    while True:
        table, revision = await _read(connection, bucket)
        declared = table.including(topology)
        if declared == table:
            return table
        try:
            await connection.call(bucket.update(TOPOLOGY_KEY, declared.encode(), last=revision))
        except KeyWrongLastSequenceError:
            continue
        return declared


async def _read(connection: NatsConnection, bucket: KeyValue) -> tuple[RoutingTable, int]:
    """Return the table and its revision, 0 before the first."""
    try:
        entry = await connection.call(bucket.get(TOPOLOGY_KEY))
    except KeyNotFoundError as missing:
        # A deleted key has a revision as well.
        return RoutingTable(), (missing.entry.revision or 0) if missing.entry else 0
    try:
        return read_table(entry.value), entry.revision or 0
    except ValueError as error:
        raise TopologyMismatch(
            "bucket", TOPOLOGY_BUCKET, {"key": TOPOLOGY_KEY}, f"its value cannot be read: {error}"
        ) from None


def _arguments(queue: Queue) -> str:
    return json.dumps(dict(queue.arguments), sort_keys=True, separators=(",", ":"))


def dead_letter_exchange(found: StreamInfo) -> str | None:
    """Return the exchange for refused messages that the stream was declared with; None without one."""
    try:
        arguments: Any = json.loads((found.config.metadata or {}).get(ARGUMENTS_KEY, "{}"))
    except ValueError:
        return None
    exchange = arguments.get("x-dead-letter-exchange") if isinstance(arguments, dict) else None
    return exchange if isinstance(exchange, str) else None


def _plain(value: object) -> str:
    """Return a value of nats-py as the server writes it."""
    return str(value.value) if isinstance(value, Enum) else str(value)


async def unreadable_messages(connection: NatsConnection, queue: str) -> dict[int, bytes]:
    """Return the delivered, unsettled messages whose heads a client cannot read: sequence and body.

    The API returns heads as base64, so that none has to be read. Raises NatsLost and APIError.
    """
    stream = stream_of(queue)
    info = await connection.call(connection.jetstream.consumer_info(stream, DURABLE))
    if not info.num_ack_pending or info.delivered is None or info.ack_floor is None:
        return {}
    first, last = info.ack_floor.stream_seq + 1, info.delivered.stream_seq
    found: dict[int, bytes] = {}
    for sequence in range(first, min(last, first + MAX_PENDING) + 1):
        message = (await _ask(connection, f"STREAM.MSG.GET.{stream}", {"seq": sequence})).get("message", {})
        if not is_readable(base64.b64decode(message.get("hdrs", ""))):
            found[sequence] = base64.b64decode(message.get("data", ""))
    return found


async def _ask(connection: NatsConnection, subject: str, request: Mapping[str, object]) -> dict[str, Any]:
    answer = await connection.call(await connection.ask(f"$JS.API.{subject}", json.dumps(request).encode()))
    document: dict[str, Any] = json.loads(answer.data)
    return document
