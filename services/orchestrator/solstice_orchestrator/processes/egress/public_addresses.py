"""Tell addresses of the internet from all others. Pure."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final

_NAT64: Final = IPv6Network("64:ff9b::/96")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address, and any IPv4 address embedded in it, is on the internet."""
    if isinstance(address, IPv6Address):
        carried = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64 or int(address) < 2**32:
            carried.append(IPv4Address(int(address) % 2**32))
        if address.is_site_local or not all(is_public(inner) for inner in carried if inner is not None):
            return False
        if address.ipv4_mapped is not None or address in _NAT64:
            return True
    return address.is_global and not (address.is_multicast or address.is_reserved)
