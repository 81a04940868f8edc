"""Spellings of one repository become one URL; ambiguous ones are refused."""

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.values.repo_urls import canonical, from_scp, full_name_of, name_of, spelled, without_user
from tests.builders import job_request

REFUSED = {
    "dots": "https://forge.example/river/../attacker",
    "dot": "https://forge.example/river/./otter",
    "dots at the end": "https://forge.example/river/..",
    "dots with a parameter": "https://forge.example/river/..;x/attacker",
    "encoded dots": "https://forge.example/river/%2e%2e/attacker",
    "half encoded dots": "https://forge.example/river/.%2E/attacker",
    "dots encoded twice": "https://forge.example/river/%252e%252e/attacker",
    "dots encoded thrice": "https://forge.example/river/%25252e%25252e/attacker",
    "encoded slash": "https://forge.example/river%2fotter",
    "slash encoded twice": "https://forge.example/river%252Fotter",
    "encoded backslash": "https://forge.example/river%5cotter",
    "overlong dot": "https://forge.example/river/%c0%ae%c0%ae/attacker",
    "query": "https://forge.example/river/otter?x",
    "empty query": "https://forge.example/river/otter?",
    "fragment": "https://forge.example/river/otter#x",
    "empty fragment": "https://forge.example/river/otter#",
    "broken escape": "https://forge.example/river/100%",
    "escape in the host": "https://forge%2eexample/river/otter",
    "escape in the user": "ssh://g%69t@forge.example/river/otter",
    "short address": "https://127.1/river/otter",
    "octal address": "https://0177.0.0.1/river/otter",
    "decimal address": "https://2130706433/river/otter",
    "hexadecimal address": "https://0x7f000001/river/otter",
    "wrong address of version 6": "https://[::g]/river/otter",
    "port in words": "https://forge.example:https/river/otter",
    "port beyond the last": "https://forge.example:65536/river/otter",
    "zone": "https://[fe80::1%25eth0]/river/otter",
    "wide full stop": "https://forge\uff0eexample/river/otter",
    "ideographic full stop": "https://forge\u3002example/river/otter",
    "dots over ssh": "ssh://git@forge.example/river/%2e%2e/attacker",
    "dots in a file": "file:///srv/river/../attacker",
    "no file": "file:///",
    "no file behind slashes": "file:////",
    "host in other letters with two dots": "https://größe../x",
    "host in other letters behind a dot": "https://.größe/x",
}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://forge.example/river\\otter", "must not hold a backslash"),
        ("https://forge.example/river%2fotter", "nor white space or control characters"),
        ("https://forge.example/river%252fotter", "nor anything encoded twice"),
    ],
)
def test_the_refusal_says_what_is_wrong(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        canonical(url)


@pytest.mark.parametrize("url", REFUSED.values(), ids=REFUSED)
def test_what_git_and_a_rule_read_differently_is_refused(url: str) -> None:
    # In words of our own, which say how to write it: Python's own message is "Expected 4 octets".
    with pytest.raises(ValueError, match=r"^must (name|not hold|write|be) "):
        canonical(url)
    assert spelled(url) == url


@pytest.mark.parametrize(
    ("url", "one"),
    [
        ("https://Forge.EXAMPLE:443/river/otter.git", "https://forge.example/river/otter.git"),
        ("https://forge.example./river//otter/", "https://forge.example/river/otter"),
        ("https://forge.example:/river/%6ftter", "https://forge.example/river/otter"),
        ("http://forge.example:80/x", "http://forge.example/x"),
        ("http://forge.example:0443/x", "http://forge.example:443/x"),
        ("ssh://git@Forge.example:22/~heron/x.git/", "ssh://git@forge.example/~heron/x.git"),
        ("git://forge.example:9418/x", "git://forge.example/x"),
        ("https://[2001:DB8:0::1]/x", "https://[2001:db8::1]/x"),
        ("https://forge.example/gr%c3%b6%C3%9fe%20x", "https://forge.example/größe%20x"),
        ("https://forge.example/%C3%B6%2e%C3", "https://forge.example/ö.%C3"),
        ("https://forge.example/%C3%B6%c3", "https://forge.example/ö%C3"),
        ("file://localhost/srv/git/x", "file:///srv/git/x"),
        ("file:///srv/c%23/x%3f", "file:///srv/c%23/x%3F"),
    ],
)
def test_spellings_of_one_repository_become_one(url: str, one: str) -> None:
    assert canonical(url) == one
    assert canonical(one) == one


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://Forge.example/river/otter.git", "forge.example/river/otter"),
        ("ssh://git@forge.example/river/otter", "forge.example/river/otter"),
        ("https://forge.example:8443/river/otter.git/", "forge.example:8443/river/otter"),
        ("file:///srv/git/otter/.git", "/srv/git/otter"),
    ],
)
def test_one_repository_has_one_name(url: str, name: str) -> None:
    assert name_of(url) == name


def test_a_path_may_be_encoded_four_times_and_no_more() -> None:
    """Servers behind proxies decode more than once, and each layer is checked."""
    path = "%41"
    for _ in range(3):
        path = path.replace("%", "%25")
    assert canonical(f"https://forge.example/river/{path}") == f"https://forge.example/river/{path}"
    with pytest.raises(ValueError, match="again and again"):
        canonical(f"https://forge.example/river/{path.replace('%', '%25')}")


PIECES = st.sampled_from(
    [".", "..", "/", "//", "%2e", "%2E", "%2f", "%25", "%252e", "%5c", "river", "Otter", ".git", ";", "?", "#", "@", ":",
     "%c3%b6", "%C3", "ö", "%20", "%e2%80%ae", "~", "%7e", "%41", "+", "\\"]
)  # fmt: skip
URLS = st.builds(
    "{}://{}{}/{}".format,
    st.sampled_from(["https", "http", "ssh", "git", "file"]),
    st.sampled_from(["forge.example", "FORGE.example.", "git@forge.example", "[::1]", "127.0.0.1", "127.1", "bücher.example", "bücher.."]),
    st.sampled_from(["", ":", ":443", ":22", ":080", ":8443"]),
    st.lists(PIECES, max_size=8).map("".join),
)  # fmt: skip


@given(URLS | st.text(max_size=40) | st.text(max_size=40).map("https://forge.example/{}".format))
def test_canonical_is_idempotent_and_what_git_fetches_is_what_rules_saw(url: str) -> None:
    try:
        once = canonical(url)
    except ValueError:
        return
    assert canonical(once) == once
    path = urlsplit(once).path
    # curl removes dot segments, git decodes a path of ssh, git and file once, servers perhaps once more: nothing changes
    # where the path leads to.
    for _ in range(4):
        parts = path.split("/")
        assert not {".", ".."} & set(parts)
        assert "\\" not in path
        assert len(parts) == len(urlsplit(once).path.split("/"))
        path = unquote(path)
    assert urlsplit(once).path.removesuffix(".git").rstrip("/") == name_of(once).removeprefix(
        urlsplit(once).netloc.rpartition("@")[2]
    )


def test_a_request_that_was_kept_before_the_rules_is_read_and_not_fetched() -> None:
    assert job_request(repo_url="https://FORGE.example/x").repo_url == "https://forge.example/x"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://forge.example/river/otter.git", "river/otter"),
        ("https://FORGE.example:443/river/otter/", "river/otter"),
        ("ssh://git@forge.example:2222/river/otter.git", "river/otter"),
        ("https://gitlab.example/group/sub/otter.git", "group/sub/otter"),
        ("file:///home/ada/src/otter", "src/otter"),
        ("file:///otter", "otter"),
        (f"https://forge.example/river/{'o' * 249}", f"river/{'o' * 249}"),
        (f"https://forge.example/river/{'o' * 250}", None),
        ("https://forge.example", None),
        ("https://forge.example/a/../b", None),
        ("https://[", None),
    ],
)
def test_the_name_of_a_repository_is_the_path_of_its_url(url: str, name: str | None) -> None:
    assert full_name_of(url) == name


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("git@forge.example:river/otter.git", "ssh://git@forge.example/river/otter.git"),
        ("forge.example:river/otter.git", "ssh://forge.example/river/otter.git"),
        ("git@forge.example:/srv/otter", "ssh://git@forge.example/srv/otter"),
        ("git@[::1]:otter", "ssh://git@[::1]/otter"),
        ("https://forge.example/river/otter", None),
        ("./a:b", None),
        ("ext::sh", None),
        ("-oProxyCommand=x:path", None),
        ("host:a b", None),
        ("host:", None),
    ],
)
def test_what_git_takes_for_ssh_becomes_its_url(text: str, url: str | None) -> None:
    assert from_scp(text) == url


def test_a_password_of_a_clone_is_left_out() -> None:
    assert without_user("https://ada:token@forge.example/a/b") == "https://forge.example/a/b"
    assert without_user("https://forge.example/a@b/c") == "https://forge.example/a@b/c"
    assert without_user("ssh://git@forge.example/a") == "ssh://git@forge.example/a"
