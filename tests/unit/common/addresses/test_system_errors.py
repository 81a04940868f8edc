"""Errors of the operating system in its own words."""

import pytest

from solstice_common.addresses.system_errors import system_words

REFUSED = "Connection refused"
UNKNOWN = "Name or service not known"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[Errno 111] Connect call failed ('127.0.0.1', 9)", REFUSED, id="asyncio"),
        pytest.param("[Errno 111] Connect call failed ('::1', 9, 0, 0)", REFUSED, id="IPv6"),
        pytest.param("111 Connect call failed ('127.0.0.1', 9)", REFUSED, id="aiormq"),
        pytest.param(
            "Error 111 connecting to 127.0.0.1:9. Connect call failed ('127.0.0.1', 9)",
            REFUSED,
            id="redis-py",
        ),
        pytest.param("[Errno -2] Name or service not known", UNKNOWN, id="unknown host"),
        pytest.param("-2 Name or service not known", UNKNOWN, id="unknown host of aiormq"),
        pytest.param(
            "Error -2 connecting to a.invalid:6379. " + UNKNOWN, UNKNOWN, id="unknown host of redis-py"
        ),
        pytest.param(
            "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9, 0, 0), "
            "[Errno 111] Connect call failed ('127.0.0.1', 9)",
            REFUSED,
            id="both addresses of a name",
        ),
        pytest.param(
            "Multiple exceptions: [Errno 99] Connect call failed ('::1', 9, 0, 0), "
            "[Errno 111] Connect call failed ('127.0.0.1', 9)",
            "Cannot assign requested address, Connection refused",
            id="two reasons",
        ),
        pytest.param("[Errno 20] Not a directory: '/a/b'", "Not a directory: '/a/b'", id="a file"),
    ],
)
def test_words_are_the_systems(text: str, words: str) -> None:
    assert system_words(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "",
        "320 CONNECTION_FORCED - broker forced connection closure",
        "WRONGPASS invalid username-password pair",
        "a, a",
        "Error 5 of 6",
        "10 connections at once are too many",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert system_words(text) == text
