"""The moment of a store's change, and the rules that the change follows."""

import random
from dataclasses import dataclass, field

from solstice_common.messages import Source
from solstice_common.tracing.samplers import Sampler
from solstice_orchestrator.domain.identifiers import NewId
from solstice_orchestrator.domain.retries import DEFAULT_RETRIES, RetryPolicies
from solstice_orchestrator.domain.trust import V1_TRUST
from solstice_orchestrator.scheduling.order import MAX_WAIT_SECONDS
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.store.records.rows import timestamp
from solstice_orchestrator.superseding.policy import SupersedeRule


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRules:
    """The rules that every change of one opened store follows."""

    new_id: NewId
    rng: random.Random
    public_url: str | None = None
    """Where readers find the pages, without a trailing slash; None leaves `target_url` out of statuses."""
    lease_seconds: float = 60.0
    planning_seconds: float = 300.0
    """A run that is planned for longer is taken back, even from a worker that is alive."""
    retries: RetryPolicies = DEFAULT_RETRIES
    """How often an infrastructure failure is followed by another attempt, and when."""
    max_wait_seconds: float = MAX_WAIT_SECONDS
    """A job that has waited longer starts before all others of its label."""
    limits: StartLimits = field(default_factory=StartLimits)
    """What limits starts besides slots."""
    supersede: SupersedeRule = SupersedeRule.RUNNING
    """Which older runs a newer push supersedes."""
    v1_trust: frozenset[Source] = V1_TRUST
    """Sources whose requests are trusted when they do not say so."""
    sampler: Sampler | None = None
    """Which runs are traced; None when none is."""
    holder: str = ""
    """Identifies this opened store among others, for the outbox."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One transaction makes all its changes at `now`, by the store's clock."""

    now: float
    rules: StoreRules

    @property
    def stamp(self) -> str:
        """`now` as messages write it."""
        return timestamp(self.now)

    def new_id(self) -> str:
        """Return a new id, greater than all before it."""
        return self.rules.new_id(self.now)
