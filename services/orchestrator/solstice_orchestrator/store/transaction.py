"""One transaction of the store as its parts see it: the connection, the moment, and the rules of the house."""

import random
import sqlite3
from dataclasses import dataclass

from solstice_orchestrator.identifiers import NewId
from solstice_orchestrator.retries import RETRY_BASE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What every transaction of one opened store goes by."""

    new_id: NewId
    rng: random.Random
    public_url: str | None = None
    """Where readers find the pages, without a trailing slash; None leaves `target_url` out of statuses."""
    lease_seconds: float = 60.0
    planning_seconds: float = 300.0
    """A run that is planned for longer is taken back even from a living worker."""
    retry_base_seconds: float = RETRY_BASE_SECONDS
    holder: str = ""
    """Tells this opened store from others, for the outbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """All that happens in it happens at `now`, wholly or not at all."""

    connection: sqlite3.Connection
    now: float
    rules: Rules

    def new_id(self) -> str:
        return self.rules.new_id(self.now)
