"""The queue in the file, against a model of lists: no message lost or doubled."""

import sqlite3
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from solstice_common.broker import Message
from solstice_common.broker.embedded import rows as embedded_rows
from solstice_common.broker.embedded.rows import RefusedMessage, SettledMessages
from solstice_common.storage.migrations import migrate, migrations_of
from solstice_common.topology import STATUSES, QueueType


class Queue(RuleBasedStateMachine):
    """Publishers, and consumers that come, take, settle in any order, settle again, and go."""

    consumers: Any = Bundle("consumers")

    def __init__(self) -> None:
        super().__init__()
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.row_factory = sqlite3.Row
        self.connection.execute("PRAGMA foreign_keys = ON")
        migrate(self.connection, None, migrations_of("solstice_common.broker.embedded.schema"))  # type: ignore[arg-type]  # a path for messages only
        embedded_rows.declare(self.connection, STATUSES.topology(QueueType.QUORUM))
        self.owner = embedded_rows.add_owner(self.connection, "token", "machine")
        self.published = 0
        self.ready: list[int] = []
        self.unsettled: dict[int, dict[int, int]] = {}  # consumer: number of the row: number of the message
        self.returned: dict[int, int] = {}
        self.dead: list[int] = []

    def teardown(self) -> None:
        self.connection.close()

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        numbers = range(self.published, self.published + count)
        rows = [
            embedded_rows.row_of(
                Message(
                    exchange=STATUSES.exchange,
                    routing_key=STATUSES.routing_key,
                    body=str(number).encode(),
                    type="t",
                ),
                str(number),
            )
            for number in numbers
        ]
        assert all(outcome.confirmed for outcome in embedded_rows.store(self.connection, rows))
        self.published += count
        self.ready.extend(numbers)

    @rule(target=consumers)
    def come(self) -> Any:
        consumer = embedded_rows.add_consumer(self.connection, self.owner, STATUSES.queue)
        self.unsettled[consumer] = {}
        return multiple(consumer)

    @rule(consumer=consumers, limit=st.integers(1, 4))
    def take(self, consumer: int, limit: int) -> None:
        deliveries = embedded_rows.claim(self.connection, STATUSES.queue, consumer, limit)
        numbers = [int(delivery.body) for delivery in deliveries]
        assert numbers == self.ready[:limit]
        del self.ready[:limit]
        for delivery, number in zip(deliveries, numbers, strict=True):
            assert isinstance(delivery.tag, int)
            self.unsettled[consumer][delivery.tag] = number
            assert delivery.redelivered is (self.returned.get(number, 0) > 0)
            assert delivery.headers.get("x-delivery-count", 0) == self.returned.get(number, 0)

    @rule(consumer=consumers, data=st.data())
    def settle(self, consumer: int, data: st.DataObject) -> None:
        # Settling messages of other consumers must change nothing.
        known = sorted({tag for unsettled in self.unsettled.values() for tag in unsettled})
        verdicts = {
            tag: data.draw(st.sampled_from(["ack", "retry", "refuse", "leave"]), label=f"{tag}")
            for tag in known
        }
        chosen = {
            verdict: [tag for tag in known if verdicts[tag] == verdict]
            for verdict in ("ack", "retry", "refuse")
        }
        refused_messages = [
            RefusedMessage(message=tag, headers={"x": 1}, message_id="m") for tag in chosen["refuse"]
        ]
        embedded_rows.settle(
            self.connection,
            STATUSES.queue,
            consumer,
            SettledMessages(acked=chosen["ack"], retried=chosen["retry"], refused=refused_messages),
        )
        own = self.unsettled[consumer]
        self._give_back([own.pop(tag) for tag in chosen["retry"] if tag in own])
        self.dead.extend(own.pop(tag) for tag in chosen["refuse"] if tag in own)
        for tag in chosen["ack"]:
            own.pop(tag, None)

    @rule(consumer=consumes(consumers))
    def go(self, consumer: int) -> None:
        unsettled = list(self.unsettled.pop(consumer).values())
        assert embedded_rows.remove_consumer(self.connection, consumer) == len(unsettled)
        self._give_back(unsettled)

    def _give_back(self, numbers: list[int]) -> None:
        for number in numbers:
            self.returned[number] = self.returned.get(number, 0) + 1
        self.ready = sorted([*self.ready, *numbers])

    @invariant()
    def the_file_holds_what_the_model_holds(self) -> None:
        work = embedded_rows.depth(self.connection, STATUSES.queue)
        dead = embedded_rows.depth(self.connection, STATUSES.dlq)
        assert work is not None
        assert dead is not None
        assert (work.ready, work.consumers) == (len(self.ready), len(self.unsettled))
        assert dead.ready == len(self.dead)
        everything = (
            len(self.ready) + len(self.dead) + sum(len(unsettled) for unsettled in self.unsettled.values())
        )
        assert self.connection.execute("SELECT count(*) FROM messages").fetchone()[0] == everything


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
