"""Reads replies of Redis that are more than numbers and lists. Pure."""

from collections.abc import Mapping, Sequence


def pairs(reply: Sequence[bytes]) -> Mapping[str, str]:
    """Return the names and values that stand in turn, as CONFIG GET and HGETALL reply."""
    return {name.decode(): value.decode() for name, value in zip(reply[::2], reply[1::2], strict=True)}


def info(reply: bytes) -> Mapping[str, str]:
    """Return the facts that INFO tells."""
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def client_names(reply: bytes) -> frozenset[str]:
    """Return the names of the connections that CLIENT LIST tells of."""
    return frozenset(
        word.removeprefix("name=")
        for line in reply.decode("utf-8", "replace").splitlines()
        for word in line.split(" ")
        if word.startswith("name=")
    )
