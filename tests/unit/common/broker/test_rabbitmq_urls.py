"""Addresses of RabbitMQ that cannot work are refused before anything connects."""

from pathlib import Path

import pytest

from solstice_common.broker import open_broker
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
