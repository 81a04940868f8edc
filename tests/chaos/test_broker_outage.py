"""Webhooks at 200 a second are accepted without a broker, and all published afterwards."""

import pytest

from tests.bench import outage
from tests.bench.load import ACCEPTED
from tests.servers.rabbitmq import Vhost


@pytest.mark.timeout(240)  # it may have to start a RabbitMQ first
async def test_webhooks_that_come_while_the_broker_is_stopped_are_all_taken_and_all_published(
    own_rabbitmq_vhost: Vhost,
) -> None:
    seen = await outage.measure(own_rabbitmq_vhost.server, outage_seconds=3)
    assert seen.statuses == {ACCEPTED: seen.sent}
    assert seen.published == seen.sent
    # What the broker had when it was stopped and could not confirm any more was published again.
    assert seen.copies <= outage.UNCONFIRMED
