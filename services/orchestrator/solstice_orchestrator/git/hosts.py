"""Circuit breakers for git hosts that do not answer, in the memory of one worker.

A host that failed is left alone for a while, longer after each further failure, and then gets one visit at a time until
it answers. This holds back only repositories that failed themselves a short time ago: a committer can make a server fail
for repositories of their own, and must stop no other. As long as one repository alone has failed, only that repository is
left alone. Work that waits meanwhile holds neither slots nor permits, and uses up no tries.

Repositories that have not answered yet leave permits of planning to the others. Checkouts whose hosts send nothing, of
all hosts together, leave half of the worker's slots to others.
"""

import random
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

import structlog

from solstice_orchestrator.git.visits import Visit, gives_way, is_silent, may_begin
from solstice_orchestrator.log_events import LogEvent

log = structlog.get_logger(__name__)

FIRST_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 120.0
ANSWERED_SECONDS: Final = 10.0
"""How recent a host's last answer is when a failure concerns one repository alone.

That repository then has its own circuit.
"""
SLOW_SECONDS: Final = 2.0
"""A host that has answered no visit for so long gets only few more visits."""
VISITS_OF_UNKNOWN_HOST: Final = 32
VISITS_OF_SLOW_HOST: Final = 4
VISITS_OF_UNPROVEN: Final = 48
"""Plannings at once of repositories that are not proven, of all hosts together: three quarters of all."""
MAX_CIRCUITS: Final = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """The circuit breaker of a host or repository; without failures it is closed."""

    failures: int = 0
    """Consecutive failures; those while the circuit is open do not count."""
    open_until: float = 0.0
    answered_at: float | None = None
    failed_at: float | None = None
    """When a visit to the repository last failed; remembered after an answer, too."""
    suspect: str | None = None
    """The repository that alone has failed since the host's last answer."""


CLOSED: Final = Circuit()


def open_seconds(failures: int, jitter: float) -> float:
    """Return how long a circuit stays open after so many failures in a row.

    `jitter` lies between 0 and 1.
    """
    ceiling = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(max(failures, 1) - 1, 64))
    return ceiling * (0.5 + jitter / 2)


def after_failure(circuit: Circuit, now: float, jitter: float) -> Circuit:
    """Return the circuit after a visit without an answer."""
    if now < circuit.open_until:
        return circuit
    failures = circuit.failures + 1
    return Circuit(failures=failures, open_until=now + open_seconds(failures, jitter), failed_at=now)


def after_answer(circuit: Circuit, now: float) -> Circuit:
    """Return the circuit after any answer, good or bad."""
    return Circuit(answered_at=now, failed_at=circuit.failed_at)


def failed_lately(repository: Circuit, now: float) -> bool:
    """Return whether a repository must wait for the circuit of its host."""
    return repository.failed_at is not None and now - repository.failed_at < LONGEST_SECONDS


def is_proven(repository: Circuit, now: float) -> bool:
    """Return whether a repository has answered, and has not failed lately."""
    return repository.answered_at is not None and not failed_lately(repository, now)


def is_of_repository(circuit: Circuit, url: str, now: float) -> bool:
    """Return whether a failure counts against the repository alone; `circuit` is its host's.

    One repository can fail on purpose. Its host is away when a second one fails, too.
    """
    if circuit.answered_at is not None and now - circuit.answered_at < ANSWERED_SECONDS:
        return True
    return not circuit.failures and circuit.suspect in {None, url}


def allowed_visits(
    circuit: Circuit, oldest_since: float | None, now: float, *, failed_lately: bool
) -> int | None:
    """Return how many visits a host may have at once; None: any number.

    `oldest_since` is when the oldest visit under way began. `failed_lately` is whether the repository must wait for the
    circuit of its host.
    """
    if failed_lately and now < circuit.open_until:
        return 0
    if failed_lately and circuit.failures:
        return 1
    answered = -1.0 if circuit.answered_at is None else circuit.answered_at
    if oldest_since is not None and now - oldest_since > SLOW_SECONDS and answered < oldest_since:
        return VISITS_OF_SLOW_HOST
    return VISITS_OF_UNKNOWN_HOST if circuit.answered_at is None else None


def host_of(url: str) -> str:
    """Return the host and port of a repository's URL; the URL itself without a host."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower() or url
    except ValueError:
        return url


def endpoint_of(url: str) -> str:
    """Return protocol, host and port of a repository's URL; the URL itself without a host.

    Another protocol of a host may fail alone, so each has its own circuit.
    """
    host = host_of(url)
    return url if host == url else f"{url.partition('://')[0]}://{host}"


@dataclass(slots=True)
class GitHosts:
    """The circuits of all git hosts; one per orchestrator, not thread-safe."""

    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    circuits: MutableMapping[str, Circuit] = field(default_factory=dict)
    slots: int | None = None
    """The most checkouts that the worker can have under way; None: any number."""
    _visits: list[Visit] = field(default_factory=list)

    def pause_of(self, url: str, *, holds_slot: bool = False) -> str | None:
        """Return why no visit to the repository's host may begin; None when one may.

        `holds_slot` is whether the visit would hold a slot.
        """
        host, now = host_of(url), self.clock()
        own = self.circuits.get(url, CLOSED)
        if now < own.open_until:
            return f"{url} cannot be fetched from; next try in {max(1, round(own.open_until - now))} s"
        circuit, waits = self.circuits.get(endpoint_of(url), CLOSED), failed_lately(own, now)
        # A repository competes only with others that have shown as much.
        kind = (is_proven(own, now), holds_slot)
        peers = [visit for visit in self._visits if (visit.proven, visit.holds_slot) == kind]
        visits = [visit.begun for visit in peers if visit.endpoint == endpoint_of(url)]
        most = allowed_visits(circuit, min(visits, default=None), now, failed_lately=waits)
        may_visit = most is None or len(visits) < most
        if kind == (False, False) and len(peers) >= VISITS_OF_UNPROVEN:
            return f"{len(peers)} repositories that have not answered yet are asked already"
        has_slot = not holds_slot or self.slots is None or self._may_hold_slot(url, self.slots)
        if may_visit and has_slot:
            return None
        if waits and now < circuit.open_until:
            return f"git host {host} does not answer; next try in {max(1, round(circuit.open_until - now))} s"
        return f"git host {host} is slow to answer, and {len(visits)} ask it already"

    def _may_hold_slot(self, url: str, slots: int) -> bool:
        endpoint = endpoint_of(url)
        answered_at = self._answered_at(endpoint)
        return may_begin(url, self._visits, self._silent(), slots, endpoint=endpoint, answered_at=answered_at)

    def is_proven(self, url: str) -> bool:
        """Return whether the repository has answered, and has not failed lately."""
        return is_proven(self.circuits.get(url, CLOSED), self.clock())

    @contextmanager
    def visit(self, url: str, *, holds_slot: bool = False) -> Iterator[Visit]:
        """Record a visit under way; its caller reports the end with `answered` or `failed`."""
        visit = Visit(
            url=url,
            endpoint=endpoint_of(url),
            begun=self.clock(),
            holds_slot=holds_slot,
            proven=self.is_proven(url),
            answered=url.startswith("file:"),
        )
        self._visits.append(visit)
        try:
            yield visit
        finally:
            self._visits.remove(visit)

    def gives_way(self, visit: Visit) -> str | None:
        """Return why a checkout must leave its slot to others; None when it need not."""
        if self.slots is None or not gives_way(visit, self._silent(), self.slots):
            return None
        return f"git host {host_of(visit.url)} has not answered for {round(self.clock() - visit.begun)} s, and others wait for slots"

    def _silent(self) -> list[Visit]:
        now = self.clock()
        return [visit for visit in self._visits if is_silent(visit, self._answered_at(visit.endpoint), now)]

    def _answered_at(self, endpoint: str) -> float | None:
        return self.circuits.get(endpoint, CLOSED).answered_at

    def answered(self, url: str) -> None:
        """Record an answer of the host, even a refusal."""
        self._set_answered(url)
        if endpoint_of(url) != url:
            self._set(url, after_answer(self.circuits.get(url, CLOSED), self.clock()))

    def _set_answered(self, url: str) -> None:
        if self.circuits.get(endpoint_of(url), CLOSED).failures:
            log.info(LogEvent.GIT_HOST_ANSWERED, host=host_of(url))
        self._set(endpoint_of(url), after_answer(CLOSED, self.clock()))

    def _set(self, key: str, circuit: Circuit) -> None:
        """Set a circuit, and forget the one that was set longest ago."""
        self.circuits.pop(key, None)
        if len(self.circuits) >= MAX_CIRCUITS:
            self.circuits.pop(next(iter(self.circuits)))
        self.circuits[key] = circuit

    def failed(self, url: str, detail: str, *, host_away: bool) -> None:
        """Record a failed fetch.

        Without `host_away` the host has answered, and only the repository is left alone.
        """
        key, now = endpoint_of(url), self.clock()
        if key != url:
            if not host_away:
                self._set_answered(url)
            circuit = self.circuits.get(key, CLOSED)
            if is_of_repository(circuit, url, now):
                self._set(key, replace(circuit, suspect=url))
                key = url
            else:
                self._set(url, replace(self.circuits.get(url, CLOSED), answered_at=None, failed_at=now))
        before = self.circuits.get(key, CLOSED)
        after = after_failure(before, now, self.jitter())
        self._set(key, after)
        if after is not before:
            log.warning(
                LogEvent.GIT_HOST_UNREACHABLE,
                host=url if key == url else host_of(url),
                failures=after.failures,
                next_try_seconds=round(after.open_until - now, 1),
                detail=detail[:500],
            )
