"""Which addresses are on the internet."""

from ipaddress import ip_address

import pytest

from solstice_orchestrator.processes.egress.public_addresses import is_public


@pytest.mark.parametrize("text", [
    "127.0.0.1", "127.9.9.9", "0.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254",
    "224.0.1.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::", "::1", "::127.0.0.1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::", "fe80::1", "fc00::1",
    "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1",
])  # fmt: skip
def test_addresses_that_are_not_on_the_internet(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "text", ["140.82.121.3", "1.1.1.1", "2606:50c0:8000::153", "64:ff9b::8c52:7903", "::ffff:140.82.121.3"]
)
def test_addresses_that_are(text: str) -> None:
    assert is_public(ip_address(text))
