"""A MessageHandler that takes good messages, and remembers how many."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from solstice_common.broker import Delivery
from solstice_common.broker.delivery import Refuse

GOOD: Final = b"good"


class RecordingHandler:
    """Takes GOOD, and refuses all else."""

    def __init__(self) -> None:
        self.consumed = 0
        self.arrived = asyncio.Event()

    def examiner(self, batch: Sequence[Delivery]) -> Callable[[Delivery], bytes | Refuse]:
        assert batch
        return self.examine

    def examine(self, delivery: Delivery) -> bytes | Refuse:
        return delivery.body if delivery.body == GOOD else Refuse(reason="not_json", detail="é" * 2048)

    async def save(self, messages: Sequence[bytes], deliveries: Sequence[Delivery]) -> Sequence[bytes]:
        assert list(messages) == [delivery.body for delivery in deliveries]
        return messages

    def on_saved(self, messages: Sequence[bytes], results: Sequence[bytes]) -> None:
        assert len(messages) == len(results)
        self.consumed += len(messages)
        self.arrived.set()

    def on_refused(self, refusal: Refuse, delivery: Delivery) -> None:
        assert refusal.reason
        assert delivery.correlation_id is None or isinstance(delivery.correlation_id, str)

    def on_error(self, message: bytes | None, error: Exception, refusal: Refuse) -> None:
        raise AssertionError((message, error, refusal))
