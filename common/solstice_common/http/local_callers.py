"""Decides whether a request comes directly from a program on this machine. Pure.

A request through a proxy does not.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Final

_HOST: Final = re.compile(r"(localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE)
_FORWARDED: Final = frozenset({
    "forwarded",
    "via",
    "true-client-ip",
    "client-ip",
    "cdn-loop",
    "fastly-client-ip",
    "fly-client-ip",
    "remote-addr",
})  # fmt: skip
_FORWARDED_PREFIXES: Final = (
    "x-forwarded",
    "x-real-",
    "x-original-",
    "x-client-",
    "x-cluster-client-ip",
    "x-remote-",
    "x-proxy",
    "x-envoy-",
    "x-appengine-",
    "x-azure-",
    "cf-",
)
"""Headers that proxies and content networks add: each shows that the request comes from another caller."""


def is_loopback(address: str | None) -> bool:
    """Whether an address is this machine's own, and cannot be reached from elsewhere."""
    if address == "localhost":
        return True
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return False
    inner = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (inner or parsed).is_loopback


def is_loopback_host(host: str) -> bool:
    """Whether the value of `Host` is one loopback name, with at most a port."""
    matched = _HOST.fullmatch(host)
    return matched is not None and is_loopback(matched[1].strip("[]").lower())


def is_local(*, peer: str | None, headers: Iterable[tuple[bytes, bytes]], http_version: str) -> bool:
    """Whether the request comes directly from a program on this machine.

    A peer without an address (a Unix socket) does not count.

    A proxy on this machine is recognised by the headers it adds, by the name it passes on, or by HTTP/1.0 (nginx's
    default).
    """
    if not is_loopback(peer) or http_version == "1.0":
        return False
    hosts: list[str] = []
    for raw_name, value in headers:
        name = raw_name.decode("latin-1").lower()
        if name == "host":
            hosts.append(value.decode("latin-1"))
        elif name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES):
            return False
    return len(hosts) == 1 and is_loopback_host(hosts[0])
