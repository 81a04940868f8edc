"""What the management API of RabbitMQ counts as held is not always another reader's."""

import pytest

from solstice_common.broker.rabbitmq.management_api import QueueCounts
from solstice_common.broker.rabbitmq.tools.rabbitmq_dead_letters import unlisted


@pytest.mark.parametrize(
    ("waiting", "counted", "number"),
    [
        (0, None, 0),
        (0, QueueCounts(ready=0, unacked=0), 0),
        (0, QueueCounts(ready=0, unacked=3), 3),
        (2, QueueCounts(ready=2, unacked=1), 1),
        # Of a moment at which our own reader held them all, or only some were back.
        (3, QueueCounts(ready=0, unacked=3), 0),
        (3, QueueCounts(ready=2, unacked=1), 0),
        # Of a moment before a script got them.
        (0, QueueCounts(ready=3, unacked=0), 0),
    ],
)
def test_only_what_is_held_beside_those_that_wait_is_held_by_others(
    waiting: int, counted: QueueCounts | None, number: int
) -> None:
    assert unlisted(waiting, counted) == number
