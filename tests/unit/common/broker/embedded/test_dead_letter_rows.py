"""Removing a group of dead letters costs the same however many a replay holds."""

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetter
from solstice_common.broker.embedded import dead_letter_rows, rows
from solstice_common.storage.migrations import migrate, migrations_of
from solstice_common.topology import STATUSES, QueueType

GROUP = 20


@contextmanager
def holding(count: int) -> Iterator[tuple[sqlite3.Connection, int, list[int]]]:
    """A database, and a consumer that holds so many dead letters, with their numbers."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        migrate(connection, None, migrations_of("solstice_common.broker.embedded.schema"))  # type: ignore[arg-type]  # a path for messages only
        rows.declare(connection, STATUSES.topology(QueueType.QUORUM))
        dead = [DeadLetter(queue=STATUSES.dlq, body=b"%d" % number) for number in range(count)]
        dead_letter_rows.put_back(connection, STATUSES.dlq, dead)
        consumer = rows.add_consumer(connection, rows.add_owner(connection, "token", "machine"), STATUSES.dlq)
        rows_of_it = dead_letter_rows.hold(connection, STATUSES.dlq, consumer, count)
        yield connection, consumer, [number for number, _ in rows_of_it]


def steps_of_removing(count: int) -> int:
    """How many instructions SQLite needs to remove a group of so many."""
    steps = itertools.count()
    with holding(count) as (connection, consumer, numbers):
        connection.set_progress_handler(lambda: next(steps) < 0, 1)
        assert dead_letter_rows.remove(connection, consumer, numbers[:GROUP]) == GROUP
        return next(steps)


def test_removing_a_group_does_not_read_the_others() -> None:
    assert steps_of_removing(1000) < 2 * steps_of_removing(100)


def test_only_what_the_consumer_holds_is_removed() -> None:
    with holding(3) as (connection, consumer, numbers):
        assert dead_letter_rows.remove(connection, consumer + 1, numbers) == 0
        assert dead_letter_rows.remove(connection, consumer, [*numbers[:2], numbers[-1] + 1]) == 2
