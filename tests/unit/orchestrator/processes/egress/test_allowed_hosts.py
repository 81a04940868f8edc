"""Which hosts and addresses untrusted jobs may reach."""

import pytest

from solstice_orchestrator.processes.egress.allowed_hosts import (
    AllowedHosts,
    Target,
    parse_hosts,
    parse_networks,
    target_of,
)

HOSTS = "pypi.org, *.Debian.org:80, [2001:DB8::7]:8443, 192.0.2.9:5000"


@pytest.mark.parametrize(
    "authority", ["pypi.org:443", "PyPI.org:443", "deb.debian.org:80", "a.b.debian.org:80", "[2001:db8::7]:8443", "192.0.2.9:5000"]
)  # fmt: skip
def test_what_the_operator_allows(authority: str) -> None:
    assert AllowedHosts(hosts=parse_hosts(HOSTS)).allows(target_of(authority))


@pytest.mark.parametrize("authority", [
    "pypi.org:80", "pypi.org:8443", "debian.org:80", "deb.debian.org:443", "evildebian.org:80", "pypi.org.evil.example:443",
    "xpypi.org:443", "192.0.2.9:443", "[2001:db8::8]:8443", "[::ffff:192.0.2.9]:5000",
])  # fmt: skip
def test_what_the_operator_does_not_allow(authority: str) -> None:
    assert not AllowedHosts(hosts=parse_hosts(HOSTS)).allows(target_of(authority))
    assert not AllowedHosts().allows(target_of(authority))


def test_a_star_is_every_host_at_one_port() -> None:
    allowed = AllowedHosts(hosts=parse_hosts("*"))
    assert allowed.allows(target_of("any.example:443"))
    assert not allowed.allows(target_of("any.example:25"))


@pytest.mark.parametrize("text", [
    "https://pypi.org", "pypi.org:", "pypi.org:0", "pypi.org:65536", "pypi.org:x", "*.1", "*.", "p*pi.org", "*.*.org",
    "2001:db8::7", "[2001:db8::7", "[nonsense]:1", "a b", "a..b", ".pypi.org", "user@pypi.org", "pypi.org/simple", "ⓛocalhost",
])  # fmt: skip
def test_a_host_that_cannot_be_meant_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is no host with or without a port; write for example") as refused:
        parse_hosts(f"fine.example,{text}")
    assert repr(text) in str(refused.value)


def test_networks() -> None:
    assert [str(each) for each in parse_networks("10.1.0.0/16, 127.0.0.1,fd00::/8,")] == [
        "10.1.0.0/16",
        "127.0.0.1/32",
        "fd00::/8",
    ]
    for wrong in ("10.1.2.3/16", "example.org", "10.1"):
        with pytest.raises(ValueError, match="is no network; write for example 10"):
            parse_networks(wrong)


@pytest.mark.parametrize("authority", [
    "pypi.org", "pypi.org:", ":443", "a:443:443", "user@a:443", "user:secret@a:443", "a@b@c:443", "a/b:443", "a?b:443", "a#b:443",
    "a\t:443", "a.:443", "a..b:443", "[::1]", "[::1%lo]:443", "[fe80::1%25lo]:443", "::1:443", "-a:443", "a:٤٤٣", "é:443",
    f"{'a' * 64}:443", f"{'a.' * 126}com:443", "%61:443", "a,b:443", "*:443", "*.debian.org:443",
])  # fmt: skip
def test_what_is_no_host_and_port_of_a_request(authority: str) -> None:
    with pytest.raises(ValueError, match="no host and port"):
        target_of(authority)


def test_a_host_has_one_spelling() -> None:
    assert target_of("[0:0::0:1]:443") == Target("::1", 443)
    assert str(target_of("[0:0::0:1]:443")) == "[::1]:443"
    assert target_of("A.Example", 80) == Target("a.example", 80)


@pytest.mark.parametrize(
    ("addresses", "refused"),
    [
        (["1.1.1.1", "2606:4700::1"], None),
        (["10.1.2.3", "1.1.1.1"], None),
        (["1.1.1.1", "10.2.0.1"], "10.2.0.1"),
        (["169.254.169.254"], "169.254.169.254"),
        (["::ffff:10.1.2.3"], "::ffff:10.1.2.3"),
        (["fe80::1%2"], "fe80::1%2"),
        (["8.8.8.8"], "8.8.8.8"),
    ],
)
def test_one_address_that_is_private_or_of_the_machine_is_enough(
    addresses: list[str], refused: str | None
) -> None:
    allowed = AllowedHosts(networks=parse_networks("10.1.0.0/16"))
    assert allowed.refused_address(addresses, lambda address: str(address) == "8.8.8.8") == refused


def test_an_address_of_the_machine_may_be_allowed() -> None:
    assert (
        AllowedHosts(networks=parse_networks("8.8.8.8")).refused_address(["8.8.8.8"], lambda _: True) is None
    )
