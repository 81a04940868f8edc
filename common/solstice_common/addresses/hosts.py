"""Chooses among the hosts of an address when one is down or refuses. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from solstice_common.errors import ConfigurationError


class Host(NamedTuple):
    """One server of an address."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class HostChoice:
    """The host that all links of a process use now.

    They share this object, so that they all connect to one host.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts: Final = tuple(hosts)
        self.reasons: dict[Host, str] = {}
        """Why each host failed last, for any of the links."""
        self._number = 0

    @property
    def current(self) -> Host:
        """The host to connect to."""
        return self.hosts[self._number]

    def leave(self, host: Host) -> None:
        """Switch to the next host, unless another link has done so already."""
        if host == self.current:
            self._number = (self._number + 1) % len(self.hosts)


class HostRound:
    """The hosts that a link tried without success since it was last connected."""

    def __init__(self, choice: HostChoice) -> None:
        self._choice = choice
        self._tried: set[Host] = set()
        """Those of this round."""
        self.is_over = False
        """Whether every host was tried, so that it is time for a pause."""

    def failed(self, host: Host, why: str) -> str:
        """Note why a host failed; returns the newest reason of each host."""
        if self.is_over:
            self._tried.clear()
        # Another link may have switched to the next host: a host that fails twice ends the round as well.
        self.is_over = host in self._tried or len(self._tried) + 1 == len(self._choice.hosts)
        self._tried.add(host)
        # Of hosts whose turn has not come in this round, an earlier reason: as far as we know, they still fail.
        reasons = self._choice.reasons
        reasons[host] = why
        self._choice.leave(host)
        if len(self._choice.hosts) == 1:
            return why
        return "; ".join(f"{each}: {reasons[each]}" for each in self._choice.hosts if each in reasons)

    def begin(self) -> None:
        """Forget the failed hosts."""
        self._tried.clear()
        self._choice.reasons.clear()
        self.is_over = False


def read_hosts(url: str, *, default_port: int, form: str) -> tuple[Host, ...]:
    """Return the hosts of `SCHEME://USER:PASSWORD@HOST:PORT,HOST:PORT/...`.

    ConfigurationError, which shows `form` and nothing of the URL: it may hold a password.
    """
    _, hosts, _ = _split(url)
    return tuple(_host(each, default_port, form) for each in hosts.split(","))


def first_host_only(url: str) -> str:
    """Return the URL with only the first of its hosts, for readers of such URLs."""
    before, hosts, after = _split(url)
    return before + hosts.partition(",")[0] + after


def _split(url: str) -> tuple[str, str, str]:
    """Return what stands before the hosts, the hosts, and what follows."""
    scheme, separator, rest = url.partition("://")
    end = min((rest.index(mark) for mark in "/?#" if mark in rest), default=len(rest))
    user, at, hosts = rest[:end].rpartition("@")
    return f"{scheme}{separator}{user}{at}", hosts, rest[end:]


def _host(text: str, default_port: int, form: str) -> Host:
    try:
        parts = urlsplit(f"//{text.removesuffix(':')}")
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"AMQP_URL: {form}") from None
    if not parts.hostname or port == 0 or parts.path or text != text.strip():
        raise ConfigurationError(f"AMQP_URL: {form}")
    return Host(parts.hostname, default_port if port is None else port)
