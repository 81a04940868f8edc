"""Decide which hosts, at which addresses, untrusted jobs may reach. Pure.

The operator writes `pypi.org,*.debian.org:80,[2001:db8::7]:8443`: a host, with a port or else 443. `*.debian.org` is every
name below `debian.org`, and `*` every host.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from solstice_orchestrator.processes.egress.public_addresses import is_public

HTTPS: Final = 443
HOSTS_SETTING: Final = "UNTRUSTED_EGRESS"
PRIVATE_SETTING: Final = "UNTRUSTED_EGRESS_PRIVATE"
BYTES_SETTING: Final = "UNTRUSTED_EGRESS_MIB"
MAX_PORT: Final = 65535
MAX_NAME: Final = 253
_EXAMPLE: Final = "pypi.org,*.debian.org:80"
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_AUTHORITY: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:@/?#\s]+))(?::([0-9]{1,5}))?", re.ASCII)
Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Target:
    """A host and a port, as the operator or a job names them."""

    host: str
    """A name in small letters, or an address in its usual form."""
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedHosts:
    """What the operator allows: hosts, private networks for them, and a number of bytes."""

    hosts: tuple[Target, ...] = ()
    networks: tuple[Network, ...] = ()
    most_bytes: int = 0
    """How many a job and all its hosts may send each other; 0: any number."""

    def allows(self, target: Target) -> bool:
        """Return whether a job may ask for this host at this port."""
        return any(each.port == target.port and _covers(each.host, target.host) for each in self.hosts)

    def refused_address(
        self, addresses: Iterable[str], is_of_machine: Callable[[Address], bool]
    ) -> str | None:
        """Return the first address to which nothing may connect; None: all are fine.

        `is_of_machine` tells addresses of this machine, where a connection from here passes every firewall.
        """
        for text in addresses:
            address = ip_address(text.partition("%")[0])
            if any(address in network for network in self.networks):
                continue
            if not is_public(address) or is_of_machine(address):
                return text
        return None


def parse_hosts(text: str) -> tuple[Target, ...]:
    """Read the operator's list of hosts; ValueError says what is wrong with it."""
    return tuple(_pattern(entry) for entry in _entries(text))


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read the operator's list of networks; ValueError says what is wrong with it."""
    networks = []
    for entry in _entries(text):
        try:
            networks.append(ip_network(entry))
        except ValueError:
            raise ValueError(f"{entry!r} is no network; write for example 10.1.0.0/16,127.0.0.1") from None
    return tuple(networks)


def target_of(authority: str, default_port: int | None = None) -> Target:
    """Read a host and port of a request; ValueError for anything else.

    Addresses in unusual forms (127.1, 0x7f000001) count as names, and are checked once they are looked up.
    """
    target = _split(authority, default_port)
    if target is None or not _is_host(target.host):
        raise ValueError("no host and port")
    return target


def _pattern(entry: str) -> Target:
    target = _split(entry, HTTPS)
    if target is not None:
        base = target.host.removeprefix("*.")
        # Nothing ends with a part of an address.
        is_wild = base != target.host and _NAME.fullmatch(base) and any(map(str.isalpha, base))
        if target.host == "*" or is_wild or _is_host(target.host):
            return target
    raise ValueError(f"{entry!r} is no host with or without a port; write for example {_EXAMPLE}")


def _split(authority: str, default_port: int | None) -> Target | None:
    matched = _AUTHORITY.fullmatch(authority.lower())
    if matched is None or len(authority) > MAX_NAME:
        return None
    in_brackets, name, port = matched.groups()
    number = default_port if port is None else int(port)
    if number is None or not 0 < number <= MAX_PORT:
        return None
    if in_brackets is None:
        return Target(name, number)
    try:
        return Target(str(IPv6Address(in_brackets)), number)
    except ValueError:
        return None


def _is_host(host: str) -> bool:
    return ":" in host or _NAME.fullmatch(host) is not None


def _covers(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return pattern in {"*", host}


def _entries(text: str) -> Iterable[str]:
    return filter(None, (part.strip() for part in text.split(",")))
