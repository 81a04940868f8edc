"""The receiver with a scripted broker; tests/integration has real brokers."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from solstice_common.broker.delivery import Ack, Refuse, Verdict
from solstice_common.broker.protocol import Delivered, Delivery
from solstice_common.broker.receiving.receiver import Receiver, first_problem
from solstice_common.errors import BrokerError, BrokerUnavailable, StoreUnavailable, TopologyMismatch
from solstice_common.topology import STATUSES, Topology
from tests.polling import wait_until

NOTHING = Topology(exchanges=(), queues=(), bindings=())


class ScriptedBroker:
    """A broker and its consumer: hands out the given batches and records their outcomes."""

    def __init__(self, *batches: str) -> None:
        self.batches: list[list[Delivered]] = []
        self.fresh = asyncio.Event()
        self.settled: list[str] = []
        self.batches_given = self.consumers = self.left = 0
        self.declared: list[BrokerError | None] = []
        self.subscribed = True
        for batch in batches:
            self.deliver(batch)

    def deliver(self, batch: str) -> None:
        self.batches.append([Delivered(body=body.encode(), tag=body) for body in batch])
        self.fresh.set()

    async def ready(self, timeout_seconds: float) -> None:
        pass

    async def declare(self, topology: Topology) -> None:
        if self.declared and (error := self.declared.pop(0)) is not None:
            raise error

    @asynccontextmanager
    async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator["ScriptedBroker"]:
        self.consumers += 1
        try:
            yield self
        finally:
            self.left += 1

    async def batch(self) -> Sequence[Delivery]:
        while not self.batches:
            self.fresh.clear()
            await self.fresh.wait()
        self.batches_given += 1
        return self.batches.pop(0)

    async def settle(self, verdicts: Iterable[tuple[Delivery, Verdict]]) -> None:
        scripted = [
            f"{each.tag} {'acked' if why == Ack() else getattr(why, 'reason', '')}" for each, why in verdicts
        ]
        self.settled.append(", ".join(scripted))


class ScriptedHandler:
    """Accepts lower-case letters, fails to read `!` or store `?`, refuses others."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.away = 0
        self.groups: list[str] = []
        self.saved: list[str] = []
        self.refused: list[str] = []
        self.crashed: list[str] = []

    def examiner(self, batch: Sequence[Delivery]) -> Callable[[Delivery], str | Refuse]:
        assert batch
        return self.examine

    def examine(self, delivery: Delivery) -> str | Refuse:
        text = delivery.body.decode()
        if text == "!":
            raise RecursionError("nobody thought of this")
        return text if text.islower() or text == "?" else Refuse(reason="invalid_field", detail="")

    async def save(self, messages: Sequence[str], deliveries: Sequence[Delivery]) -> Sequence[str]:
        assert "".join(messages).encode() == b"".join(delivery.body for delivery in deliveries)
        self.groups.append("".join(messages))
        if self.away:
            self.away -= 1
            raise StoreUnavailable("the store", "gone")
        await self.open.wait()
        if "?" in messages:
            raise ValueError("a bug")
        return [message.upper() for message in messages]

    def on_saved(self, messages: Sequence[str], results: Sequence[str]) -> None:
        self.saved += [f"{message}{result}" for message, result in zip(messages, results, strict=True)]

    def on_refused(self, refusal: Refuse, delivery: Delivery) -> None:
        assert delivery.correlation_id is None
        self.refused.append(refusal.reason)

    def on_error(self, message: str | None, error: Exception, refusal: Refuse) -> None:
        self.crashed.append(f"{message} {type(error).__name__} {refusal.reason}")


class ScriptedGate:
    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()

    @property
    def paused(self) -> bool:
        return not self.is_open.is_set()

    async def wait_for_capacity(self) -> None:
        await self.is_open.wait()


class NoWaiting(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return 0.0


def receiver_of(
    broker: ScriptedBroker, handler: ScriptedHandler, *, gate: ScriptedGate | None = None, at_once: int = 4
) -> Receiver[str, str]:
    return Receiver(
        handler,
        broker=broker,  # type: ignore[arg-type]  # a receiver publishes nothing
        rng=NoWaiting(),
        gate=gate,
        at_once=at_once,
    )


@asynccontextmanager
async def receiving(
    broker: ScriptedBroker, handler: ScriptedHandler, *, gate: ScriptedGate | None = None, at_once: int = 4
) -> AsyncIterator["asyncio.Task[None]"]:
    async with running(receiver_of(broker, handler, gate=gate, at_once=at_once)) as task:
        yield task


@asynccontextmanager
async def running(receiver: Receiver[str, str]) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(receiver.run(STATUSES, NOTHING, prefetch=10), name="receiver")
    yield task
    task.cancel()
    await asyncio.wait([task])


async def settled(broker: ScriptedBroker, count: int) -> list[str]:
    await wait_until(lambda: len(broker.settled) >= count)
    return broker.settled


class ClosingSlowly(ScriptedBroker):
    """A broker that fails while it is read, and whose consumer closes slowly."""

    async def batch(self) -> Sequence[Delivery]:
        await asyncio.sleep(0)
        raise BrokerUnavailable("the broker", "it sent nonsense")

    @asynccontextmanager
    async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator["ScriptedBroker"]:
        try:
            yield self
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()


async def test_a_failure_is_raised_however_slowly_the_consumer_closes() -> None:
    """A task group whose body has ended leaves its task half cancelled when it fails.

    The next limit of time that expires then cancels it before Python 3.11.3, and a cancelled intake ends nothing.
    """
    async with receiving(ClosingSlowly(), ScriptedHandler()) as task:
        await asyncio.wait([task])
    assert not task.cancelled()
    assert task.cancelling() == 0
    assert isinstance(task.exception(), BaseExceptionGroup)


async def test_a_batch_is_stored_and_then_acked_in_one_go() -> None:
    broker, handler = ScriptedBroker("abc", "d"), ScriptedHandler()
    async with receiving(broker, handler):
        assert await settled(broker, 2) == ["a acked, b acked, c acked", "d acked"]
    assert handler.saved == ["aA", "bB", "cC", "dD"]


async def test_refused_messages_do_not_wait_for_the_store() -> None:
    broker, handler = ScriptedBroker("aBcD"), ScriptedHandler()
    handler.open.clear()
    async with receiving(broker, handler):
        assert await settled(broker, 1) == ["B invalid_field, D invalid_field"]
        assert handler.refused == ["invalid_field"] * 2
        handler.open.set()
        assert (await settled(broker, 2))[1] == "a acked, c acked"


async def test_a_mistake_in_reading_a_message_costs_that_message_alone() -> None:
    broker, handler = ScriptedBroker("a!b"), ScriptedHandler()
    async with receiving(broker, handler):
        assert await settled(broker, 2) == ["! internal_error", "a acked, b acked"]
    assert handler.crashed == ["None RecursionError internal_error"]


async def test_a_mistake_in_recording_a_refusal_costs_that_message_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mistaken(refusal: Refuse, delivery: Delivery) -> None:
        raise RecursionError(refusal, delivery)

    broker, handler = ScriptedBroker("aBc"), ScriptedHandler()
    monkeypatch.setattr(handler, "on_refused", mistaken)
    async with receiving(broker, handler):
        assert await settled(broker, 2) == ["B internal_error", "a acked, c acked"]


async def test_a_header_that_cannot_be_read_costs_that_message_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreadable(Delivered):
        def __getattribute__(self, name: str) -> object:
            if name == "correlation_id":
                raise UnicodeError("nobody thought of this")
            return super().__getattribute__(name)

    broker, handler = ScriptedBroker("a"), ScriptedHandler()
    broker.batches[0].append(Unreadable(body=b"B", tag="B"))
    async with receiving(broker, handler):
        assert await settled(broker, 2) == ["B internal_error", "a acked"]


async def test_a_mistake_in_storing_a_message_costs_that_message_alone() -> None:
    broker, handler = ScriptedBroker("a?b"), ScriptedHandler()
    async with receiving(broker, handler):
        assert await settled(broker, 3) == ["a acked", "? internal_error", "b acked"]
    assert handler.saved == ["aA", "bB"]
    assert handler.crashed == ["? ValueError internal_error"]


async def test_an_unavailable_store_is_retried_and_reported_once() -> None:
    broker, handler = ScriptedBroker("ab"), ScriptedHandler()
    handler.away = 5
    with capture_logs() as logs:
        async with receiving(broker, handler):
            assert await settled(broker, 1) == ["a acked, b acked"]
    assert [(each["event"], each.get("count")) for each in logs] == [
        ("intake.paused", 2),
        ("intake.resumed", None),
    ]
    assert handler.groups == ["ab"] * 6


@pytest.mark.parametrize("at_once", [1, 3])
async def test_no_more_is_taken_from_the_broker_than_may_be_stored_at_once(at_once: int) -> None:
    broker, handler = ScriptedBroker("a", "b", "c", "d", "e"), ScriptedHandler()
    handler.open.clear()
    async with receiving(broker, handler, at_once=at_once):
        await wait_until(lambda: broker.batches_given == at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        assert broker.batches_given == at_once
        handler.open.set()
        assert sorted(await settled(broker, 5)) == [f"{text} acked" for text in "abcde"]
    assert handler.groups == ["a", "b", "c", "d", "e"], "stored in the order they came"


async def test_a_receiver_that_is_cancelled_acks_nothing_that_is_not_stored() -> None:
    broker, handler = ScriptedBroker("aB", "c"), ScriptedHandler()
    handler.open.clear()
    async with receiving(broker, handler) as task:
        await wait_until(lambda: broker.batches_given == 2)
        await settled(broker, 1)
    assert task.cancelled()
    assert broker.settled == ["B invalid_field"]
    assert (broker.consumers, broker.left) == (1, 1)
    assert handler.saved == []


@pytest.mark.parametrize("reading", [False, True], ids=["storing", "waiting for messages"])
async def test_a_closed_gate_leaves_the_queue_until_there_is_room(reading: bool) -> None:
    broker, handler, gate = ScriptedBroker("a"), ScriptedHandler(), ScriptedGate()
    handler.open.clear()
    async with receiving(broker, handler, gate=gate, at_once=2 if reading else 1):
        await wait_until(lambda: handler.groups == ["a"])
        gate.is_open.clear()
        handler.open.set()
        await settled(broker, 1)
        if reading:
            # A waiting consumer gets the last batch.
            broker.deliver("b")
            await settled(broker, 2)
        await wait_until(lambda: broker.left == 1)
        broker.deliver("c")
        assert (broker.consumers, "c acked" in broker.settled) == (1, False)
        gate.is_open.set()
        assert (await settled(broker, len(broker.settled) + 1))[-1] == "c acked"
    assert broker.consumers == 2


async def test_its_problem_is_that_nothing_can_arrive_and_never_that_its_gate_is_closed() -> None:
    broker, gate = ScriptedBroker(), ScriptedGate()
    broker.subscribed = False
    receiver = receiver_of(broker, ScriptedHandler(), gate=gate)
    assert first_problem([]) == "no queue is consumed yet"
    assert first_problem([receiver]) == "the queues are not declared yet"
    async with running(receiver):
        await wait_until(lambda: broker.consumers)
        assert receiver.problem == f"the queue {STATUSES.queue} is not consumed"
        broker.subscribed = True
        assert first_problem([receiver]) is None
        assert first_problem([receiver, receiver_of(broker, ScriptedHandler())]) is not None
        gate.is_open.clear()
        broker.deliver("a")
        await wait_until(lambda: broker.left)
        assert receiver.problem is None
    gate.is_open.set()
    assert receiver.problem == f"the queue {STATUSES.queue} is not consumed"


async def test_each_reason_why_the_broker_takes_no_declaration_is_reported_once() -> None:
    broker, handler = ScriptedBroker("a"), ScriptedHandler()
    gone, refused = BrokerUnavailable("amqp://x", "gone"), BrokerUnavailable("amqp://x", "ACCESS_REFUSED")
    broker.declared = [gone, gone, refused, refused, gone]
    with capture_logs() as logs:
        async with receiving(broker, handler):
            await settled(broker, 1)
    assert [(each["event"], each["detail"]) for each in logs] == [
        ("broker.awaited", str(why)) for why in (gone, refused, gone)
    ]


async def test_a_queue_of_another_kind_ends_the_receiver() -> None:
    broker = ScriptedBroker()
    mismatch = TopologyMismatch("queue", "orders", {}, "it is classic")
    broker.declared = [mismatch]
    async with receiving(broker, ScriptedHandler()) as task:
        await wait_until(task.done)
        assert task.exception() is mismatch
