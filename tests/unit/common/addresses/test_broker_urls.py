"""The URL of a broker, taken apart and shown."""

import pytest

from solstice_common.addresses.broker_urls import parsed_url, shown_url
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
