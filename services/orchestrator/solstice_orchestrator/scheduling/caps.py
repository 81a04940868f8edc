"""Caps: a number per name, and how many more it allows. Pure.

Settings `REPOSITORY_CAPS`, `OWNER_CAPS` and `OWNER_STARTS_PER_HOUR`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

_ENTRY: Final = re.compile(r"(?P<name>[^\s=,]+)=(?P<jobs>[0-9]{1,6})", re.ASCII)
EACH_OTHER: Final = "*"
"""The name of the entry for each name that has none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """A number per name: `of` names some, `default` is for each other one.

    None: no cap.
    """

    of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    default: int | None = None

    def cap(self, name: str) -> int | None:
        """Return the cap of the name; None: no cap."""
        return self.of.get(name, self.default)

    @property
    def any(self) -> bool:
        """Whether any name has a cap."""
        return bool(self.of) or self.default is not None


def parse_caps(text: str) -> Caps:
    """Read `*=8,acme/app=2`; ValueError says what is wrong; an empty text means no caps."""
    entries = named_entries(text, _ENTRY, "NAME=NUMBER; write for example *=8,acme=2")
    of = {name: int(entry["jobs"]) for name, entry in entries.items()}
    default = of.pop(EACH_OTHER, None)
    return Caps(of=MappingProxyType(of), default=default)


def named_entries(text: str, pattern: re.Pattern[str], form: str) -> Mapping[str, re.Match[str]]:
    """Split `NAME=...,NAME=...` into its entries by name.

    Raises ValueError for an entry that `pattern` does not match, which says that it is not of this form, and for a name
    that comes twice.
    """
    entries: dict[str, re.Match[str]] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = pattern.fullmatch(entry)
        if match is None:
            raise ValueError(f"{entry!r} is not {form}")
        if match["name"] in entries:
            raise ValueError(f"{match['name']!r} stands there twice")
        entries[match["name"]] = match
    return entries


def unused(caps: Caps, used: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """Return how many more each name may have; names without a cap are left out."""
    return {
        name: max(0, cap - used.get(name, 0))
        for name in dict.fromkeys(names)
        if (cap := caps.cap(name)) is not None
    }
