"""Which proxy git would use, and which of its words may be shown."""

from base64 import b64decode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.git.credentials.proxy_choice import (
    check_proxies,
    proxied_fetch,
    proxy_of,
    read_proxy,
    without_passwords,
)

MARK = "plaNted"
ANY_TEXT = st.text(st.characters(codec="utf-8"))


def account(url: str) -> str:
    proxy = read_proxy("https_proxy", url)
    assert proxy is not None
    return b64decode(proxy.authorization.removeprefix("Basic ")).decode()


@pytest.mark.parametrize(
    ("url", "name", "has_tls", "is_account"),
    [
        ("http://joe:pass@proxy.example:3128", "proxy.example:3128", False, "joe:pass"),
        ("joe:pass@proxy.example:3128/", "proxy.example:3128", False, "joe:pass"),
        ("https://joe:pass@proxy.example", "proxy.example:443", True, "joe:pass"),
        ("http://joe:pass@proxy.example", "proxy.example:1080", False, "joe:pass"),
        ("http://joe@proxy.example:1", "proxy.example:1", False, "joe:"),
        ("http://:pass@proxy.example:1", "proxy.example:1", False, ":pass"),
        ("http://j%6Fe:p%40s%3As@[::1]:8080", "[::1]:8080", False, "joe:p@s:s"),
        ("http://joe:a[b]@c %@proxy.example:1", "proxy.example:1", False, "joe:a[b]@c %"),
    ],
)
def test_urls_of_proxies(url: str, name: str, has_tls: bool, is_account: str) -> None:
    proxy = read_proxy("https_proxy", url)
    assert proxy is not None
    assert (proxy.name, proxy.has_tls, account(url)) == (name, has_tls, is_account)
    assert proxy.authorization not in repr(proxy)


@pytest.mark.parametrize(
    "url", ["", "http://proxy.example:3128", "proxy:1", "socks5h://proxy:1", "::not a url::"]
)
def test_without_user_and_password_nothing_is_ours(url: str) -> None:
    assert read_proxy("https_proxy", url) is None


@pytest.mark.parametrize("url", [
    f"http://joe:{MARK}#{MARK}@proxy:1", f"http://joe:{MARK}/{MARK}@proxy:1", f"http://joe:{MARK}?@proxy:1",
    f"socks5h://joe:{MARK}@proxy:1", f"http://joe:{MARK}@", f"http://joe:{MARK}@proxy:port",
    f"http://joe:{MARK}@proxy:0", f"http://joe:{MARK}@[::1", f"http://joe:{MARK}@proxy:99999",
])  # fmt: skip
def test_what_cannot_be_used_is_said_without_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^ALL_PROXY: ") as raised:
        check_proxies({"ALL_PROXY": url, "PATH": f"@{MARK}"})
    assert MARK not in str(raised.value)


def test_proxies_that_can_be_used_are_accepted() -> None:
    check_proxies({"HTTPS_PROXY": "http://joe:pass@proxy:1", "http_proxy": "proxy:1", "PATH": "/a@b"})


@given(ANY_TEXT, ANY_TEXT)
def test_any_account_arrives_whole(user: str, password: str) -> None:
    assert account(f"http://{quote(user, safe='')}:{quote(password, safe='')}@p:1") == f"{user}:{password}"


PROXIES = {"https": "http://a:b@s:1", "http": "http://a:b@p:1", "all": "http://a:b@all:1"}


@pytest.mark.parametrize(
    ("repo_url", "environment", "chosen"),
    [
        ("https://f/a", {"HTTPS_PROXY": "https", "http_proxy": "http", "all_proxy": "all"}, ("s:1", "f:443")),
        ("https://f:8443/a", {"ALL_PROXY": "all", "http_proxy": "http"}, ("all:1", "f:8443")),
        ("http://f/a", {"HTTPS_PROXY": "https", "http_proxy": "http"}, ("p:1", "f:80")),
        ("http://joe@F:80/a", {"http_proxy": "http"}, ("p:1", "f:80")),
        ("http://[::1]/a", {"http_proxy": "http"}, ("p:1", "[::1]:80")),
        ("http://f/a", {"HTTP_PROXY": "http", "HTTPS_PROXY": "https"}, None),
        ("https://f/a", {"https_proxy": "", "HTTPS_PROXY": "https", "ALL_PROXY": "all"}, None),
        ("ssh://f/a", {"ALL_PROXY": "all"}, None),
        ("file:///f/a", {"ALL_PROXY": "all"}, None),
        ("", {"ALL_PROXY": "all"}, None),
    ],
)
def test_the_proxy_that_git_would_use(
    repo_url: str, environment: dict[str, str], chosen: tuple[str, str] | None
) -> None:
    fetch = proxied_fetch(repo_url, {name: PROXIES.get(value, "") for name, value in environment.items()})
    assert (fetch and (fetch.proxy.name, fetch.target)) == chosen


def test_only_proxies_with_accounts_are_kept_from_git() -> None:
    environment = {"ALL_PROXY": "socks5://proxy:1", "PATH": "/a@b", "NO_PROXY": "@"}
    assert without_passwords({**environment, "https_proxy": "http://joe@proxy"}) == environment


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, None),
        ({"HTTPS_PROXY": ""}, None),
        ({"HTTPS_PROXY": "http://quay.example:3128/"}, "quay.example:3128"),
        ({"https_proxy": "quay.example:3128"}, "quay.example:3128"),
        ({"HTTPS_PROXY": "http://joe:x@quay.example:3128"}, "quay.example:3128"),
        ({"HTTPS_PROXY": "http://quay.example:3128", "no_proxy": "other.example, .example"}, None),
        ({"HTTPS_PROXY": "http://quay.example:3128", "NO_PROXY": "orge.example"}, "quay.example:3128"),
        ({"HTTPS_PROXY": "http://quay.example:3128", "NO_PROXY": "*"}, None),
    ],
)
def test_our_own_connections_use_the_proxy_that_git_would_use(
    variables: dict[str, str], name: str | None
) -> None:
    proxy = proxy_of("https://forge.example/river/otter", variables)
    assert (proxy and proxy.name) == name


@pytest.mark.parametrize(
    ("url", "name"),
    [("socks5h://quay.example:9", "quay.example:9"), ("socks5://[fd00::1]", "[fd00::1]:1080")],
)
def test_our_own_connections_use_a_socks_proxy(url: str, name: str) -> None:
    proxy = proxy_of("https://forge.example/a", {"ALL_PROXY": url})
    assert proxy is not None
    assert (proxy.name, proxy.is_socks, proxy.has_tls) == (name, True, False)


def test_our_own_connections_refuse_a_proxy_of_another_kind() -> None:
    with pytest.raises(
        ConfigurationError, match="HTTPS_PROXY: must be a proxy with http://, https:// or socks5h://"
    ):
        proxy_of("https://forge.example/a", {"HTTPS_PROXY": "socks4://quay.example"})
