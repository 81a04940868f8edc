"""Addresses with several hosts: reading them, and the order of attempts."""

import pytest

from solstice_common.addresses.hosts import Host, HostChoice, HostRound, first_host_only, read_hosts
from solstice_common.errors import ConfigurationError

A, B, C = Host("a", 1), Host("b", 2), Host("c", 3)


def hosts(url: str) -> list[str]:
    return [str(host) for host in read_hosts(url, default_port=5672, form="write hosts")]


def test_hosts_stand_between_commas_and_have_a_default_port() -> None:
    assert hosts("amqp://u:p@a:1,b,[::1]:3,[::2]/v?x=1,2") == ["a:1", "b:5672", "[::1]:3", "[::2]:5672"]
    assert hosts("redis://a:") == ["a:5672"]


@pytest.mark.parametrize("part", ["a,", ",a", "a:0", "a:x", "a:70000", "a, b", "[::1"])
def test_wrong_host_is_refused_without_the_password(part: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^AMQP_URL: write hosts$"):
        hosts(f"amqp://u:planted@{part}/v")


def test_first_host_stands_alone() -> None:
    assert first_host_only("amqp://u:p%40@a:1,b:2/v?x=1,2#f,g") == "amqp://u:p%40@a:1/v?x=1,2#f,g"
    assert first_host_only("amqp://a") == "amqp://a"
    assert first_host_only("amqp://u,v:p,q@a,b") == "amqp://u,v:p,q@a"


def test_round_ends_after_every_host_and_begins_again() -> None:
    tried = HostRound(choice := HostChoice([A, B]))
    assert tried.is_over is False
    assert tried.failed(choice.current, "refused") == "a:1: refused"
    assert (tried.is_over, choice.current) == (False, B)
    assert tried.failed(choice.current, "timeout") == "a:1: refused; b:2: timeout"
    assert (tried.is_over, choice.current) == (True, A)
    tried.begin()
    assert tried.is_over is False
    assert tried.failed(choice.current, "again") == "a:1: again"
    assert not tried.is_over


def test_every_host_is_named_in_the_midst_of_a_later_round_and_after_one_of_another_link() -> None:
    choice = HostChoice([A, B])
    one, two = HostRound(choice), HostRound(choice)
    one.failed(A, "refused")
    assert two.failed(B, "timeout") == "a:1: refused; b:2: timeout"
    assert one.failed(A, "closed") == "a:1: closed; b:2: timeout"
    assert one.failed(B, "refused") == "a:1: closed; b:2: refused"


def test_one_host_is_not_repeated_in_its_reason() -> None:
    tried = HostRound(choice := HostChoice([A]))
    assert tried.failed(choice.current, "refused") == "refused"
    assert tried.is_over


def test_two_links_that_lose_one_host_meet_at_the_next() -> None:
    choice = HostChoice([A, B, C])
    one, two = HostRound(choice), HostRound(choice)
    one.failed(A, "lost")
    two.failed(A, "lost")
    assert choice.current == B


def test_host_that_comes_twice_ends_the_round() -> None:
    choice = HostChoice([A, B])
    tried = HostRound(choice)
    tried.failed(A, "lost")
    choice.leave(B)  # another link
    tried.failed(choice.current, "lost")
    assert tried.is_over
