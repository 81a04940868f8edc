"""Which faults happen in which order: a pure function of a seed."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """The faults of the broker, of the links to it, and of the services."""

    KILL_BROKER = "broker killed"
    RESTART_BROKER = "broker restarted"
    FREEZE_BROKER = "broker frozen"
    CUT_LINKS = "links cut"
    HALF_OPEN_LINKS = "links half open"
    REFUSE_LINKS = "links refused"
    MEMORY_ALARM = "memory alarm"
    DELETE_QUEUE = "queue deleted"
    WRONG_PASSWORD = "password wrong"
    KILL_LEADER = "leader killed"
    FREEZE_LEADER = "leader frozen"
    ISOLATE_LEADER = "leader in a minority partition"
    KILL_FORGE = "forge-integration killed"
    KILL_ORCHESTRATOR = "orchestrator killed"
    FREEZE_ORCHESTRATOR = "orchestrator frozen"


OF_SERVICES: Final = frozenset({Fault.KILL_FORGE, Fault.KILL_ORCHESTRATOR, Fault.FREEZE_ORCHESTRATOR})
"""Faults that need nothing of the broker."""
OF_CLUSTERS: Final = frozenset({Fault.KILL_LEADER, Fault.FREEZE_LEADER, Fault.ISOLATE_LEADER})
"""Faults that need several nodes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One fault, after a share of its webhooks was answered."""

    fault: Fault
    share: float
    """From 0 to 1."""
    seconds: float
    """How long it lasts, where it lasts."""


def draw(seed: int, possible: Collection[Fault], *, steps: int) -> Sequence[Step]:
    """So many different faults in random order, each again only when all have happened. Pure."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    while len(faults) < steps:
        some = sorted(possible)
        rng.shuffle(some)
        faults += some
    return [Step(fault, rng.uniform(0.1, 0.7), rng.uniform(0.3, 2.0)) for fault in faults[:steps]]
