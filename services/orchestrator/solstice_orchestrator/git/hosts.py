"""Git hosts that do not answer: a circuit breaker for each, in the memory of one worker.

A host that failed is left alone for a while, longer after each further failure, and then asked by one visitor at a time
until it answers. What waits for it meanwhile holds neither slots nor places, and spends no tries. Checkouts whose hosts
say nothing, of all hosts together, leave half of the worker's slots to others.
"""

import random
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import structlog

from solstice_orchestrator.git.visits import Visit, gives_way, is_silent, may_begin
from solstice_orchestrator.log_events import LogEvent

log = structlog.get_logger("solstice_orchestrator.git.hosts")

FIRST_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 120.0
ANSWERED_SECONDS: Final = 10.0
"""When a host answered others so shortly before, a failure is the repository's own, which then has a circuit of its own."""
SLOW_SECONDS: Final = 2.0
"""A host on which a visitor waits for so long, and which answered no other one since, gets few more."""
VISITS_OF_UNKNOWN_HOST: Final = 32
VISITS_OF_SLOW_HOST: Final = 4
MAX_HOSTS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """What is known of a host. Without failures it is closed: whoever wants may ask."""

    failures: int = 0
    """One after the other; a crowd that fails together is one."""
    open_until: float = 0.0
    answered_at: float | None = None


CLOSED: Final = Circuit()


def open_seconds(failures: int, chance: float) -> float:
    """How long a host that failed so often in a row is left alone; `chance` lies between 0 and 1."""
    ceiling = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(max(failures, 1) - 1, 64))
    return ceiling * (0.5 + chance / 2)


def after_failure(circuit: Circuit, now: float, chance: float) -> Circuit:
    """The circuit once a visitor got no answer."""
    if now < circuit.open_until:
        return circuit
    failures = circuit.failures + 1
    return Circuit(failures=failures, open_until=now + open_seconds(failures, chance))


def after_answer(now: float) -> Circuit:
    """The circuit once the host answered anything, good or bad."""
    return Circuit(answered_at=now)


def allowed_visits(circuit: Circuit, oldest_since: float | None, now: float) -> int | None:
    """How many may ask the host at once; None: any number. `oldest_since`: when the oldest visit under way began."""
    if now < circuit.open_until:
        return 0
    if circuit.failures:
        return 1
    answered = -1.0 if circuit.answered_at is None else circuit.answered_at
    if oldest_since is not None and now - oldest_since > SLOW_SECONDS and answered < oldest_since:
        return VISITS_OF_SLOW_HOST
    return VISITS_OF_UNKNOWN_HOST if circuit.answered_at is None else None


def host_of(url: str) -> str:
    """The host and port of a repository's URL; the URL itself where there is none."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower() or url
    except ValueError:
        return url


@dataclass(slots=True)
class GitHosts:
    """One per orchestrator; not for several threads."""

    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    circuits: MutableMapping[str, Circuit] = field(default_factory=dict)
    slots: int | None = None
    """Checkouts that the worker can have under way at once; None: any number."""
    _visits: list[Visit] = field(default_factory=list)

    def held(self, url: str, *, holds_slot: bool = False) -> str | None:
        """Why nobody may ask the repository's host now; None when somebody may, with a slot or without."""
        host, now = host_of(url), self.clock()
        own = self.circuits.get(url, CLOSED)
        if now < own.open_until:
            return f"{url} cannot be fetched from; next try in {max(1, round(own.open_until - now))} s"
        circuit = self.circuits.get(host, CLOSED)
        visits = [visit.begun for visit in self._visits if visit.host == host]
        most = allowed_visits(circuit, min(visits, default=None), now)
        has_place = most is None or len(visits) < most
        has_slot = (
            not holds_slot or self.slots is None or may_begin(host, self._visits, self._silent(), self.slots)
        )
        if has_place and has_slot:
            return None
        if now < circuit.open_until:
            return f"git host {host} does not answer; next try in {max(1, round(circuit.open_until - now))} s"
        return f"git host {host} is slow to answer, and {len(visits)} ask it already"

    @contextmanager
    def visit(self, url: str, *, holds_slot: bool = False) -> Iterator[Visit]:
        """Ask the host; say how that ended with `answered` or `failed`."""
        visit = Visit(
            host=host_of(url), begun=self.clock(), holds_slot=holds_slot, heard=url.startswith("file:")
        )
        self._visits.append(visit)
        try:
            yield visit
        finally:
            self._visits.remove(visit)

    def gives_way(self, visit: Visit) -> str | None:
        """Why a checkout under way must leave its slot to others; None when it need not."""
        if self.slots is None or not gives_way(visit, self._silent(), self.slots):
            return None
        return f"git host {visit.host} has not answered for {round(self.clock() - visit.begun)} s, and others wait for slots"

    def _silent(self) -> list[Visit]:
        now = self.clock()
        return [
            visit
            for visit in self._visits
            if is_silent(visit, self.circuits.get(visit.host, CLOSED).answered_at, now)
        ]

    def answered(self, url: str) -> None:
        """The host said something, if only no."""
        host = host_of(url)
        self.circuits.pop(url, None)
        if self.circuits.pop(host, CLOSED).failures:
            log.info(LogEvent.GIT_HOST_ANSWERS, host=host)
        if len(self.circuits) >= MAX_HOSTS:
            self.circuits.pop(next(iter(self.circuits)))
        self.circuits[host] = after_answer(self.clock())

    def failed(self, url: str, detail: str) -> None:
        """The host gave no answer, or none that helps."""
        host, now = host_of(url), self.clock()
        answered_at = self.circuits.get(host, CLOSED).answered_at
        if answered_at is not None and now - answered_at < ANSWERED_SECONDS:
            host = url
        before = self.circuits.pop(host, CLOSED)
        after = self.circuits[host] = after_failure(before, now, self.chance())
        if after is not before:
            log.warning(
                LogEvent.GIT_HOST_AWAY,
                host=host,
                failures=after.failures,
                next_try_seconds=round(after.open_until - now, 1),
                detail=detail[:500],
            )
