"""How many jobs of one repository may run at once, over all workers: the setting `REPOSITORY_CAPS`. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

_ENTRY: Final = re.compile(r"(?P<repository>[^\s=,]+)=(?P<jobs>[0-9]{1,5})", re.ASCII)
_ALL: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Running jobs per repository: `of` names some, `default` is for all others (None: no cap)."""

    of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    default: int | None = None

    def cap(self, repository: str) -> int | None:
        """None when any number may run."""
        return self.of.get(repository, self.default)

    @property
    def any(self) -> bool:
        """Whether there is anything to count."""
        return bool(self.of) or self.default is not None


def parse_caps(text: str) -> Caps:
    """Read `*=8,acme/app=2`; ValueError says what is wrong. Nothing at all: no caps."""
    of: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"{entry!r} is not REPOSITORY=JOBS; write for example *=8,acme/app=2")
        if match["repository"] in of:
            raise ValueError(f"the repository {match['repository']!r} stands there twice")
        of[match["repository"]] = int(match["jobs"])
    default = of.pop(_ALL, None)
    return Caps(of=MappingProxyType(of), default=default)


def room(caps: Caps, running: Mapping[str, int], repositories: Iterable[str] = ()) -> Mapping[str, int]:
    """How many more jobs may start: of the repositories that run some, are named by a cap, or are asked about.

    Repositories without a cap are left out. Ask about those of all candidates: one that runs nothing may start as many
    as its cap allows, and no more.
    """
    asked = {**dict.fromkeys(running), **dict.fromkeys(caps.of), **dict.fromkeys(repositories)}
    return {
        repository: max(0, cap - running.get(repository, 0))
        for repository in asked
        if (cap := caps.cap(repository)) is not None
    }
