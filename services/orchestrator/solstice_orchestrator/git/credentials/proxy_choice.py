"""Choose the proxy for a repository's host, as git does from variables of the environment. Pure."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote, urlsplit

from solstice_common.errors import ConfigurationError

_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "https": ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"),
        # A CGI program gets a stranger's header as HTTP_PROXY, so git and curl do not read it.
        "http": ("http_proxy", "all_proxy", "ALL_PROXY"),
    }
)
"""The variables by the scheme of the repository; the first that is set counts, even an empty one."""
PROXY_VARIABLES: Final = frozenset(name for names in _VARIABLES.values() for name in names)
_PORTS: Final = {"http": 1080, "https": 443}
"""curl's ports for proxies that name none (CURLOPT_PROXY(3))."""
_SOCKS_PORTS: Final = {"socks5": 1080, "socks5h": 1080}
_TARGET_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A proxy; most here ask for a user and a password."""

    has_tls: bool
    is_socks: bool = False
    """Whether it speaks SOCKS 5 and not HTTP."""
    host: str
    port: int
    authorization: str = field(repr=False)
    """The value of the header Proxy-Authorization; empty for a proxy without user and password."""

    @property
    def name(self) -> str:
        """The proxy for messages, without user and password."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedFetch:
    """The proxy for fetches from one server."""

    proxy: Proxy
    variable: str
    """The variable of the environment by which git chooses a proxy for this server."""
    target: str
    """The host and port of the server."""


def proxied_fetch(repo_url: str, environment: Mapping[str, str]) -> ProxiedFetch | None:
    """Return the proxy for a repository when it has a password, else None."""
    parts = urlsplit(repo_url)
    names = _VARIABLES.get(parts.scheme, ())
    chosen = next((name for name in names if name in environment), None)
    proxy = None if chosen is None else read_proxy(chosen, environment[chosen])
    if proxy is None:
        return None
    return ProxiedFetch(
        proxy=proxy, variable=names[0], target=target_of(parts.netloc, _TARGET_PORTS[parts.scheme])
    )


def proxy_of(repo_url: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for connections of ours to a host; None for a direct one.

    ConfigurationError for a proxy of another kind.
    """
    parts = urlsplit(repo_url)
    chosen = next((name for name in _VARIABLES.get(parts.scheme, ()) if name in environment), None)
    if chosen is None or not environment[chosen].strip():
        return None
    excepted = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    if _is_excepted(parts.hostname or "", excepted):
        return None
    with_account = read_proxy(chosen, environment[chosen])
    return with_account or _proxy(chosen, environment[chosen].strip(), "")


def _is_excepted(host: str, no_proxy: str) -> bool:
    """Return whether NO_PROXY names a host, as curl reads it (CURLOPT_NOPROXY(3))."""
    names = [name.strip().lower().strip(".") for name in no_proxy.split(",")]
    return "*" in names or any(name and (host == name or host.endswith(f".{name}")) for name in names)


def without_passwords(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without those proxies that have a user or a password."""
    return {
        name: value for name, value in environment.items() if name not in PROXY_VARIABLES or "@" not in value
    }


def check_proxies(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a proxy with a password that cannot be used."""
    for name in sorted(PROXY_VARIABLES & environment.keys()):
        read_proxy(name, environment[name])


def read_proxy(variable: str, url: str) -> Proxy | None:
    """Read the URL of a proxy; None for one without user and password.

    ConfigurationError names the variable, and nothing of the URL.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        scheme, rest = "http", scheme
    end = min((rest.index(mark) for mark in "/?#" if mark in rest), default=len(rest))
    user, at, host = rest[:end].rpartition("@")
    if "@" in rest[end:]:
        raise ConfigurationError(
            f"{variable}: write '#' as %23, '/' as %2F and '?' as %3F in the user and password of a proxy"
        )
    if not at:
        return None
    if scheme not in _PORTS:
        raise ConfigurationError(
            f"{variable}: only a proxy with http:// or https:// may have a user and password"
        )
    name, _, password = user.partition(":")
    credentials = f"{unquote(name)}:{unquote(password)}".encode("utf-8", "surrogateescape")
    return _proxy(variable, f"{scheme}://{host}", f"Basic {b64encode(credentials).decode()}")


def _proxy(variable: str, url: str, authorization: str) -> Proxy:
    """Return the proxy at a URL without user and password."""
    scheme, separator, host = url.partition("://")
    if not separator:
        scheme, host = "http", scheme
    usual_port = (_PORTS | _SOCKS_PORTS).get(scheme)
    if usual_port is None:
        raise ConfigurationError(
            f"{variable}: must be a proxy with http://, https:// or socks5h:// for credentials and Git LFS"
        )
    try:
        parts = urlsplit(f"//{host.rstrip('/')}")
        port = usual_port if parts.port is None else parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if not parts.hostname or not port:
        raise ConfigurationError(f"{variable}: must be http://USER:PASSWORD@HOST:PORT")
    return Proxy(
        has_tls=scheme == "https",
        is_socks=scheme in _SOCKS_PORTS,
        host=parts.hostname,
        port=port,
        authorization=authorization,
    )


def target_of(netloc: str, default_port: int) -> str:
    """Return the host and port of a URL in one spelling."""
    host = netloc.rpartition("@")[2].lower()
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        name, port = host.removesuffix(":"), str(default_port)
    return f"{name.removesuffix('.')}:{port}"
