"""The addresses that git may use, and the options that restrict it to them."""

import pytest

from solstice_orchestrator.git.addresses import AddressRefused, pin_to, pinned
from solstice_orchestrator.git.command import printable

SSH = "ssh -oBatchMode=yes"


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
