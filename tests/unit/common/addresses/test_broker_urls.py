"""The URL of a broker, taken apart and shown."""

import pytest

from solstice_common.addresses.broker_urls import check_options, parsed_url, shown_url
from solstice_common.addresses.hosts import Host
from solstice_common.errors import ConfigurationError

FORM = "must be a:// or b://HOST"


def test_url_is_read_with_the_first_of_its_hosts() -> None:
    parsed = parsed_url("b://ada:s%23t@one:7,two:8/virtual?x=1", schemes={"a", "b"}, form=FORM)
    assert (parsed.scheme, parsed.host, parsed.port, parsed.path) == ("b", "one", 7, "/virtual")
    assert (parsed.user, parsed.password, parsed.query["x"]) == ("ada", "s#t", "1")


@pytest.mark.parametrize("url", ["c://host", "a:///path", "host", "a:"])
def test_url_of_another_scheme_or_without_a_host_is_answered_with_the_form(url: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^AMQP_URL: {FORM}$"):
        parsed_url(url, schemes={"a", "b"}, form=FORM)


@pytest.mark.parametrize(
    "url", ["a://ada:sec#ret@host:port/", "a://ada:secret@host:70000", "a://ada:secret@[host"]
)
def test_url_that_cannot_be_taken_apart_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parsed_url(url, schemes={"a"}, form=FORM)
    assert "sec" not in str(refused.value)
    assert str(refused.value) == (
        "AMQP_URL: cannot be taken apart; in user and password write # [ ] @ / ? and % as "
        "%23 %5B %5D %40 %2F %3F and %25"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("a://ada:secret@one:7/virtual?cafile=/etc/ca", "a://ada@one:7,two:8/virtual"),
        ("a://one", "a://one:7,two:8"),
    ],
)
def test_url_is_shown_with_all_hosts_and_without_password_and_options(url: str, shown: str) -> None:
    hosts = [Host(name="one", port=7), Host(name="two", port=8)]
    assert shown_url(parsed_url(url, schemes={"a"}, form=FORM), hosts).rstrip("/") == shown


def test_unknown_options_are_named_beside_the_known_ones() -> None:
    check_options({"one": "1"}, {"one", "two"}, "Otter")
    with pytest.raises(ConfigurationError, match=r"unknown option 'a', 'z'; Otter takes one, two$"):
        check_options({"z": "1", "one": "1", "a": ""}, {"two", "one"}, "Otter")


@pytest.mark.parametrize("url", ["a://ada:7?secret@host/", "a://ada:7?secret=one@host/"])
def test_password_that_is_read_as_an_option_is_not_quoted(url: str) -> None:
    """A `?` in it begins the options, and digits before that are a port."""
    with pytest.raises(ConfigurationError, match=r"cannot be taken apart.* and % as %23") as refused:
        check_options(parsed_url(url, schemes={"a"}, form=FORM).query, {"one"}, "Otter")
    assert "secret" not in str(refused.value)
