"""The messages of RabbitMQ's dead letters: read from deliveries, copied, and put back."""

import struct
from collections.abc import Mapping
from typing import Any, Final

import aio_pika
from pamqp import commands as spec

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter, plain
from solstice_common.broker.dead_letters.hashed_bodies import LargeBody
from solstice_common.broker.headers import BROKER_COUNTERS
from solstice_common.broker.rabbitmq.frames import UnreadHeader
from solstice_common.broker.rabbitmq.received_properties import publishable

MOST_BYTES: Final = 131_072 - 64
"""Of all properties: they have to fit one frame of RabbitMQ's default size, or the broker ends the connection."""


def dead_letter_of(
    queue: str, header: UnreadHeader, body: bytes, large: LargeBody | None, *, redelivered: bool
) -> DeadLetter:
    """Return the dead letter in a delivery, without what cannot be published again."""
    properties = header.read()
    headers = {str(name): plain(value) for name, value in _publishable(properties.headers or {}).items()}
    if not redelivered:
        # A publisher may have set it; the broker counts only returned messages.
        headers = {name: value for name, value in headers.items() if name not in BROKER_COUNTERS}
    return DeadLetter(
        queue=queue,
        body=body,
        large=large,
        headers=headers,
        # Of an empty text aio-pika publishes none, and a copy must have the id of its original.
        type=properties.message_type or None,
        correlation_id=properties.correlation_id or None,
        message_id=properties.message_id or None,
        priority=properties.priority,
        timestamp=properties.timestamp,
        content_type=properties.content_type,
        app_id=properties.app_id,
    )


def unchanged_copy(properties: spec.Basic.Properties, body: bytes) -> aio_pika.Message:
    """Return the same message, without counters, time to live and user, who may be another."""
    headers = properties.headers or {}
    return aio_pika.Message(
        body,
        headers=_publishable({k: v for k, v in headers.items() if k not in BROKER_COUNTERS}),
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        priority=properties.priority,
        correlation_id=properties.correlation_id,
        reply_to=properties.reply_to,
        message_id=properties.message_id,
        timestamp=properties.timestamp,
        type=properties.message_type,
        app_id=properties.app_id,
    )


def message_of(dead_letter: DeadLetter) -> aio_pika.Message:
    """Return the message that puts a dead letter back, without counters."""
    return aio_pika.Message(
        dead_letter.body,
        headers=_publishable({k: v for k, v in dead_letter.headers.items() if k not in BROKER_COUNTERS}),
        content_type=dead_letter.content_type,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        priority=dead_letter.priority,
        correlation_id=dead_letter.correlation_id,
        message_id=dead_letter.message_id,
        timestamp=dead_letter.timestamp,
        type=dead_letter.type,
        app_id=dead_letter.app_id,
    )


def why_unfit(message: aio_pika.Message) -> str:
    """Return why AMQP cannot carry the properties; empty when it can."""
    try:
        size = len(message.properties.marshal())
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        return f"a property does not fit AMQP: {error}"
    return f"its properties have {size} bytes, and {MOST_BYTES} fit" if size > MOST_BYTES else ""


def _publishable(headers: Mapping[str, Any]) -> dict[str, Any]:
    carried = {name: publishable(value) for name, value in headers.items()}
    return {name: value for name, value in carried.items() if value is not None}
