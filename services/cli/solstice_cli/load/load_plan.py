"""Plans a load: which requests, for which repository, at which moment. Pure."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority
from solstice_common.messages.states import RunState


class JobKind(StrEnum):
    """What the job of a request does."""

    NOOP = "noop"
    """It ends at once."""
    SLEEPING = "sleeping"
    """It holds its slot for a second."""
    FAILING = "failing"
    """It fails."""
    FLAKY = "flaky"
    """It fails at its first try; its author allows another."""

    @property
    def expected(self) -> RunState:
        """The state in which its run has to end."""
        return RunState.FAILED if self is JobKind.FAILING else RunState.SUCCEEDED


_SHARE: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
DEFAULT_MIX: Final = "noop=80,sleeping=5,failing=10,flaky=5"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One request of a load."""

    number: int
    """From 1."""
    kind: JobKind
    repository: int
    """The number of its repository, from 1."""
    priority: Priority | None
    """None: the system decides."""
    due_seconds: float
    """When it is to be sent, in seconds from the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What a load consists of."""

    requests: int
    mix: Mapping[JobKind, int]
    """Shares of the kinds; they need not sum up to anything."""
    priorities: Mapping[Priority, int]
    """Shares of the classes; empty: the system decides."""
    repositories: int
    rate: float | None
    """Requests per second; None: all at once."""
    burst: int = 1
    """How many are due at the same moment."""
    seed: int = 0

    def drawn(self) -> Sequence[LoadRequest]:
        """Return the requests in the order of sending; the same seed gives the same."""
        chance = random.Random(self.seed)  # noqa: S311  nothing secret
        kinds = chance.choices(list(self.mix), weights=list(self.mix.values()), k=self.requests)
        classes: Sequence[Priority | None] = [None] * self.requests
        if self.priorities:
            classes = chance.choices(
                list(self.priorities), weights=list(self.priorities.values()), k=self.requests
            )
        return [
            LoadRequest(
                number=number + 1,
                kind=kinds[number],
                repository=number % self.repositories + 1,
                priority=classes[number],
                due_seconds=0.0 if self.rate is None else number // self.burst * self.burst / self.rate,
            )
            for number in range(self.requests)
        ]


def parse_mix(text: str) -> dict[JobKind, int]:
    """Return the shares of `noop=80,failing=20`; ConfigurationError says what is wrong."""
    return {JobKind(name): share for name, share in _shares("--mix", text, list(JobKind)).items()}


def parse_priorities(text: str) -> dict[Priority, int]:
    """Return the shares of `default=8,high=2`; none for an empty text."""
    return {Priority(name): share for name, share in _shares("--priorities", text, list(Priority)).items()}


def _shares(option: str, text: str, names: Sequence[str]) -> dict[str, int]:
    shares: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, share = (word.strip() for word in part.partition("="))
        if name not in names or not _SHARE.fullmatch(share):
            raise ConfigurationError(
                f"{option} {part!r}: write NAME=SHARE with commas between; names: {', '.join(names)}"
            )
        if name in shares:
            raise ConfigurationError(f"{option} names {name} twice")
        shares[name] = int(share)
    if shares and not any(shares.values()):
        raise ConfigurationError(f"{option} {text!r}: at least one share must be above 0")
    return shares
