"""Refuse repositories on private addresses, and make git use the checked address."""

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from solstice_orchestrator.processes.egress.public_addresses import is_public

_PORTS: Final = {"http": 80, "https": 443, "ssh": 22, "git": 9418}
ALLOW: Final = "GIT_ALLOW_PRIVATE allows it"


class AddressRefused(Exception):
    """The repository has an address from which this orchestrator does not fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPin:
    """Options and variables that make git connect to the checked addresses alone."""

    addresses: tuple[str, ...] = ()
    """The checked addresses of an http or https host; empty: they need no check."""
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def pin_to(scheme: str, host: str, port: int, addresses: Iterable[str], ssh_command: str) -> AddressPin:
    """Return the pin to these addresses; raises AddressRefused when one is not public."""
    unique = list(dict.fromkeys(addresses))
    for text in unique:
        if not is_public(ip_address(text.partition("%")[0])):
            raise AddressRefused(f"{host} is the private address {text}; {ALLOW}")
    if not unique:
        raise AddressRefused(f"{host} has no address")
    if scheme in {"http", "https"} and ":" in host:
        return AddressPin(addresses=tuple(unique))
    if scheme in {"http", "https"}:
        # https://git-scm.com/docs/git-config#Documentation/git-config.txt-httpcurloptResolve (git 2.37)
        joined = ",".join(f"[{text}]" if ":" in text else text for text in unique)
        return AddressPin(
            addresses=tuple(unique), options=("-c", f"http.curloptResolve={host}:{port}:{joined}")
        )
    if scheme == "ssh":
        known_as = host if port == _PORTS["ssh"] else f"[{host}]:{port}"
        command = f"{ssh_command} -oHostName={unique[0]} -oHostKeyAlias={known_as} -oProxyJump=none"
        return AddressPin(environment=MappingProxyType({"GIT_SSH_COMMAND": command}))
    if host not in unique:
        raise AddressRefused(f"{scheme}:// cannot be held to an address that was checked; {ALLOW}")
    return AddressPin()


async def pinned(repo_url: str, ssh_command: str) -> AddressPin:
    """Look up the host of a repository, and return the pin to its addresses.

    Raises AddressRefused when one is not on the internet, and OSError when the host has no address.
    """
    parts = urlsplit(repo_url)
    if parts.scheme not in _PORTS:
        return AddressPin()
    try:
        host, port = (parts.hostname or "").removesuffix("."), parts.port or _PORTS[parts.scheme]
        host.encode("ascii")
    except ValueError:
        raise AddressRefused("its URL names no host that can be looked up") from None
    if not host or not all(char.isalnum() or char in "-._:" for char in host) or host.startswith("-"):
        raise AddressRefused("its URL names no host that can be looked up")
    if (parts.hostname or "").endswith("."):
        raise AddressRefused("its host ends with a dot")
    return pin_to(parts.scheme, host, port, await _addresses(host, port), ssh_command)


async def _addresses(host: str, port: int) -> Sequence[str]:
    address_infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in address_infos]
