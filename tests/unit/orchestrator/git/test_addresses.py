"""The addresses that git may use, and the options that restrict it to them."""

from ipaddress import ip_address

import pytest

from solstice_orchestrator.git.addresses import AddressRefused, is_public, pin_to, pinned
from solstice_orchestrator.git.command import printable

SSH = "ssh -oBatchMode=yes"


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


def test_one_private_address_among_others_is_enough() -> None:
    with pytest.raises(AddressRefused, match=r"169\.254\.169\.254; GIT_ALLOW_PRIVATE"):
        pin_to("https", "forge.example", 443, ["1.1.1.1", "169.254.169.254"], SSH)


def test_http_is_held_to_all_that_was_checked() -> None:
    pin = pin_to("https", "forge.example", 8443, ["1.1.1.1", "2606:4700::1"], SSH)
    assert pin.options == ("-c", "http.curloptResolve=forge.example:8443:1.1.1.1,[2606:4700::1]")


def test_ssh_is_held_to_one_and_still_asks_for_the_key_of_the_name() -> None:
    pin = pin_to("ssh", "forge.example", 2222, ["1.1.1.1"], SSH)
    words = pin.environment["GIT_SSH_COMMAND"].split()
    assert words[2:] == ["-oHostName=1.1.1.1", "-oHostKeyAlias=[forge.example]:2222", "-oProxyJump=none"]


def test_gits_own_protocol_takes_addresses_alone() -> None:
    pin_to("git", "1.1.1.1", 9418, ["1.1.1.1"], SSH)
    with pytest.raises(AddressRefused, match="cannot be held"):
        pin_to("git", "forge.example", 9418, ["1.1.1.1"], SSH)


@pytest.mark.parametrize("url", [
    "http://127.0.0.1/a", "http://2130706433/a", "http://0x7f.1/a", "http://0177.0.0.1/a", "http://127.1/a",
    "http://[::1]:80/a", "http://[::ffff:127.0.0.1]/a", "http://localhost/a", "ssh://git@127.0.0.1/a",
    "https://169.254.169.254/latest", "http://user:secret@127.0.0.1/a", "http://localhost./a", "http://a$(id)/a",
    "ssh://-oProxyCommand=id/a", "http://[fe80::1%25lo]/a", "git://127.0.0.1/a", "http://ⓛocalhost/a",
])  # fmt: skip
async def test_ways_to_write_this_machine(url: str) -> None:
    with pytest.raises(AddressRefused):
        await pinned(url, SSH)


def test_what_a_server_says_cannot_change_the_look_of_a_terminal() -> None:
    assert printable("a\x1b[31mb\x07\u202ec\x9b") == "a [31mb  c "
