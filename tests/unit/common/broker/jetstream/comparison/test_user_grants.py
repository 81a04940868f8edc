"""Whose rights NATS shows."""

import pytest

from solstice_common.broker.jetstream.comparison.user_grants import granted_rights
from solstice_common.errors import BrokerUnavailable, ConfigurationError

RIGHTS = {("publish", "solstice.jobs.v1")}


async def test_another_user_than_that_of_the_url_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConfigurationError, match="only to 'other'"):
        await granted_rights("nats://otter:p@127.0.0.1:1", RIGHTS, user="other")


async def test_a_server_that_is_away_tells_nothing() -> None:
    with pytest.raises(BrokerUnavailable, match="no connection"):
        await granted_rights("nats://otter:p@127.0.0.1:1", RIGHTS, user="otter")
