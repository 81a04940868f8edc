"""Whether this machine can take one more job, and which resource is short. Pure.

`sensors.py` reads. The limits are those of Zuul's executor: a job that starts on a machine that swaps, or whose disk is
full, fails, and harms the jobs that run there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

OFF: Final = "off"
FIRST_PAUSE_SECONDS: Final = 2.0
LONGEST_PAUSE_SECONDS: Final = 120.0
_ENTRY: Final = re.compile(
    r"(?P<resource>[a-z]+)=(?P<number>[0-9]{1,5}(\.[0-9]{1,3})?)(?P<percent>%?)", re.ASCII
)


class Resource(StrEnum):
    """What a machine may be short of.

    A closed list, in the order in which they are asked.
    """

    MACHINE = "machine"
    """Git or the system lacked something; nothing starts until a pause is over. Has no limit."""
    DISK = "disk"
    MEMORY = "memory"
    LOAD = "load"
    STARTING = "starting"
    """Jobs whose checkout is in progress: many at once load disk and network before a load average shows it."""


UNFIT_RESOURCES: Final = frozenset({Resource.MACHINE, Resource.DISK, Resource.MEMORY})
"""Without these neither planning nor a checkout succeeds.

Load and starting jobs do not stop planning.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """Limits at which the machine takes no more jobs; None: no limit."""

    load: float | None = None
    """The highest load average over a minute, per processor."""
    disk: float | None = None
    """The percentage of the workspaces' disk that must be free."""
    memory: float | None = None
    """The percentage of memory that must be available."""
    starting: float | None = None
    """Jobs that may be starting at once, per processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorReading:
    """The values of the sensors; None where this system has no such sensor."""

    processors: int = 1
    load: float | None = None
    """Load average over a minute."""
    disk_free: float | None = None
    """Percent."""
    memory_available: float | None = None
    """Percent."""


PATIENT_RESOURCES: Final = frozenset({Resource.LOAD})
"""Shortages that other programs may cause for a long time, and one more job hardly worsens.

Not a full disk or memory: a job that starts then fails, and may harm others.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRefusal:
    """The governor starts nothing now, and why."""

    resource: Resource
    detail: str
    """The value found, and the value needed."""


def parse_limits(text: str) -> MachineLimits:
    """Read `load=2.5,disk=5%,memory=5%,starting=4`, or `off`; ValueError says what is wrong.

    A resource that is not named has no limit.
    """
    limits: dict[str, float] = {}
    for entry in () if text.strip() == OFF else text.split(","):
        match = _ENTRY.fullmatch(entry.strip())
        percents = {Resource.DISK.value, Resource.MEMORY.value}
        if (
            match is None
            or match["resource"] not in set(Resource) - {Resource.MACHINE}
            or bool(match["percent"]) is not (match["resource"] in percents)
        ):
            raise ValueError(
                f"{entry.strip()!r} is not RESOURCE=LIMIT; write for example load=2.5,disk=5%,memory=5%,starting=4, or off"
            )
        if match["resource"] in limits:
            raise ValueError(f"{match['resource']!r} stands there twice")
        limits[match["resource"]] = float(match["number"])
        if match["percent"] and limits[match["resource"]] >= 100:  # noqa: PLR2004  percent
            raise ValueError(
                f"{entry.strip()!r} would refuse every job: it is the percentage that has to be free"
            )
        if not match["percent"] and limits[match["resource"]] <= 0:
            raise ValueError(
                f"{entry.strip()!r} would refuse every job; leave {match['resource']} out for no limit"
            )
    return MachineLimits(**limits)


def pause_seconds(failures: int, jitter: float) -> float:
    """Return the seconds for which a machine takes nothing after `failures` in a row.

    `jitter` lies between 0 and 1. The pause is at least half of its ceiling, so that another worker can take the failed
    job.
    """
    ceiling = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(max(failures, 1) - 1, 64))
    return ceiling * (0.5 + jitter / 2)


def startable(limits: MachineLimits, processors: int, starting: int) -> int | None:
    """Return how many more jobs may begin to start; None: any number.

    One may start on the smallest machine.
    """
    return None if limits.starting is None else max(1, int(limits.starting * processors)) - starting


def out_of_patience(refusal: StartRefusal, waited_seconds: float, patience_seconds: float) -> bool:
    """Whether one job starts nevertheless, after waiting so long; patience of 0: never."""
    return refusal.resource in PATIENT_RESOURCES and 0 < patience_seconds <= waited_seconds


def refusal(limits: MachineLimits, reading: SensorReading, starting: int) -> StartRefusal | None:
    """Return the refusal to start a job now, with its resource; None: it may start."""
    short = _shortages(limits, reading, starting)
    for resource in Resource:
        if resource in short:
            return StartRefusal(resource=resource, detail=short[resource])
    return None


def _shortages(limits: MachineLimits, reading: SensorReading, starting: int) -> Mapping[Resource, str]:
    short = {}
    if limits.disk is not None and reading.disk_free is not None and reading.disk_free < limits.disk:
        short[Resource.DISK] = (
            f"{reading.disk_free:.1f} % of the workspaces' disk is free, less than {limits.disk:g} %"
        )
    if (
        limits.memory is not None
        and reading.memory_available is not None
        and reading.memory_available < limits.memory
    ):
        short[Resource.MEMORY] = (
            f"{reading.memory_available:.1f} % of the memory is available, less than {limits.memory:g} %"
        )
    if (
        limits.load is not None
        and reading.load is not None
        and reading.load > limits.load * reading.processors
    ):
        short[Resource.LOAD] = (
            f"the load is {reading.load:.1f}, more than {limits.load:g} for each of {reading.processors} processors"
        )
    startable_jobs = startable(limits, reading.processors, starting)
    if startable_jobs is not None and startable_jobs <= 0:
        short[Resource.STARTING] = f"{starting} jobs are being checked out, as many as may be at once"
    return short
