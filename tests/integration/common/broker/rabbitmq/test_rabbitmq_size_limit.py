"""A dead letter above RabbitMQ's limit is named, and others are put back beside it."""

from typing import Final

from solstice_common.broker import DeadLetter, PublishStatus, open_dead_letter_queues
from tests.browsing import browse
from tests.dead_letter_replays import JOBS, TOPOLOGY
from tests.servers.rabbitmq import Vhost
from tests.traffic import connected

LIMIT: Final = 16 << 20
"""Of RabbitMQ 4; that of 3.10 is eight times as large."""


async def test_a_dead_letter_above_the_limit_is_named_with_the_remedy(rabbitmq_vhost: Vhost) -> None:
    async with (
        connected(rabbitmq_vhost.url, topology=TOPOLOGY),
        open_dead_letter_queues(rabbitmq_vhost.url, name="test") as queues,
    ):
        queue = queues.queue(JOBS.dlq)
        outcomes = await queue.put_back(
            [DeadLetter(queue=JOBS.dlq, body=body) for body in (b"1", b"x" * (LIMIT + 1), b"2")]
        )
        if rabbitmq_vhost.server.major < 4:
            assert all(each.confirmed for each in outcomes)
            return
        assert [each.confirmed for each in outcomes] == [True, False, True]
        assert outcomes[1].status is PublishStatus.REJECTED
        assert f"its body has {LIMIT + 1} bytes, and RabbitMQ takes {LIMIT}" in outcomes[1].detail
        assert "max_message_size" in outcomes[1].detail
        # The first one may have arrived twice.
        assert {each.body for each in await browse(queue, 100)} == {b"1", b"2"}
