"""A dead letter above RabbitMQ's limit is named, and others are put back beside it."""

from typing import Final

import pytest

from solstice_common.broker import DeadLetter, PublishStatus, open_dead_letter_queues
from solstice_common.broker.dead_letters.dead_letter_queue import DeadLetterQueue
from solstice_common.errors import BrokerUnavailable
from tests.browsing import browse
from tests.dead_letter_replays import JOBS, TOPOLOGY
from tests.servers.rabbitmq import Vhost
from tests.traffic import connected

EVERY_VERSION = True

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


async def read_often(queue: DeadLetterQueue) -> None:
    """Read it more often than a quorum queue may count without a copy."""
    for _ in range(10):
        await browse(queue, 100)


async def test_a_limit_below_waiting_dead_letters_is_named_and_loses_none(own_rabbitmq_vhost: Vhost) -> None:
    """Read a few times, they have to be copied, and that ended with "Channel closed"."""
    server, bodies = own_rabbitmq_vhost.server, [b"1", b"x" * 2000, b"2"]
    async with (
        connected(own_rabbitmq_vhost.url, topology=TOPOLOGY),
        open_dead_letter_queues(own_rabbitmq_vhost.url, name="test") as queues,
    ):
        queue = queues.queue(JOBS.dlq)
        await queue.put_back([DeadLetter(queue=JOBS.dlq, body=body) for body in bodies])
        # Where a running server looks for it.
        limit = server.ctl("eval", "application:get_env(rabbit, max_message_size, 134217728).").strip()
        set_limit = (
            "persistent_term:put(max_message_size, {})."
            if server.major >= 4
            else "application:set_env(rabbit, max_message_size, {}), persistent_term:erase(max_message_size)."
        )
        server.ctl("eval", set_limit.format(1000))
        try:
            with pytest.raises(BrokerUnavailable, match=r"2000 bytes, .* 1000: raise max_message_size"):
                await read_often(queue)
        finally:
            server.ctl("eval", set_limit.format(limit))
        assert {each.body for each in await browse(queue, 100)} == {*bodies}
