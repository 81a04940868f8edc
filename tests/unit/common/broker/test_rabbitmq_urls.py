"""Addresses of RabbitMQ that cannot work are refused before anything connects."""

from pathlib import Path

import pytest

from solstice_common.broker import open_broker
from solstice_common.broker.rabbitmq.management_api import messages_in
from solstice_common.errors import ConfigurationError
from tests.servers.certificates import certificate_for_loopback


@pytest.mark.parametrize("option", ["cafile", "certfile", "keyfile"])
async def test_a_certificate_that_is_not_there_is_a_mistake_and_no_broker_that_is_away(
    option: str, tmp_path: Path
) -> None:
    """OpenSSL itself names no file, and the link would retry forever."""
    there, none = certificate_for_loopback(tmp_path), tmp_path / "none.pem"
    beside = f"certfile={there}&" if option == "keyfile" else ""
    url = f"amqps://otter:heron@127.0.0.1:5671/%2f?{beside}{option}={none}"
    with pytest.raises(ConfigurationError, match=f"AMQP_URL: {option} {none} cannot be used") as raised:
        async with open_broker(url, name="test"):
            pass
    assert "heron" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://otter:he[ron@127.0.0.1:15672",
        "http://otter:heron#x@127.0.0.1:15672",
        "http://otter:9#heron@127.0.0.1:15672",
        "http:/otter:heron@127.0.0.1:15672",
        "otter:heron@127.0.0.1",
        "http://127.0.0.1:15672?password=heron",
    ],
)
async def test_address_of_the_management_api_that_cannot_work_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--management-url: must look like") as raised:
        await messages_in("amqp://127.0.0.1:9/", "queue", management_url=url)
    assert "ron" not in str(raised.value)
