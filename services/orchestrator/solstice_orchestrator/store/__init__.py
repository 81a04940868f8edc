"""The store keeps requests, runs, jobs, attempts, logs and the outbox.

The URL's scheme chooses which store.
"""

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from solstice_common.messages import Source
from solstice_common.settings import is_postgresql
from solstice_common.storage.sqlite_place import sqlite_place
from solstice_common.tracing.samplers import Sampler
from solstice_orchestrator.domain.identifiers import id_source
from solstice_orchestrator.domain.retries import DEFAULT_RETRIES, RetryPolicies
from solstice_orchestrator.domain.trust import V1_TRUST
from solstice_orchestrator.scheduling.caps import Caps
from solstice_orchestrator.scheduling.order import MAX_WAIT_SECONDS
from solstice_orchestrator.scheduling.quotas import Quotas
from solstice_orchestrator.scheduling.rates import StartRates
from solstice_orchestrator.scheduling.starts import StartLimits
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.records.moment import StoreRules
from solstice_orchestrator.superseding.policy import SupersedeRule

__all__ = ["JobStore", "open_store"]


@asynccontextmanager
async def open_store(
    url: str,
    *,
    clock: Callable[[], float] | None = None,
    rng: random.Random | None = None,
    public_url: str | None = None,
    lease_seconds: float = 60.0,
    retries: RetryPolicies = DEFAULT_RETRIES,
    max_wait_seconds: float = MAX_WAIT_SECONDS,
    caps: Caps | None = None,
    quotas: Quotas | None = None,
    rates: StartRates | None = None,
    supersede: SupersedeRule = SupersedeRule.RUNNING,
    v1_trust: frozenset[Source] = V1_TRUST,
    sampler: Sampler | None = None,
) -> AsyncIterator[JobStore]:
    """Open the store at `url` (`sqlite:///FILE`, `memory:`, `postgresql://...`) and migrate its schema.

    `public_url` is where readers find the pages; statuses link to it. `clock` is for tests: a store uses its own, which
    with PostgreSQL is the database's. `sampler` says which runs are traced; None: none is. Raises ConfigurationError for a URL of no known scheme, StoreUnavailable,
    SchemaTooNew.
    """
    rng = rng or _default_rng()
    rules = StoreRules(
        new_id=id_source(rng),
        rng=rng,
        public_url=public_url.rstrip("/") if public_url else None,
        lease_seconds=lease_seconds,
        retries=retries,
        max_wait_seconds=max_wait_seconds,
        limits=StartLimits(caps=caps or Caps(), quotas=quotas or Quotas(), rates=rates or StartRates()),
        supersede=supersede,
        v1_trust=v1_trust,
        sampler=sampler,
        holder=f"{rng.getrandbits(64):016x}",
    )
    # Imported late: a process that uses one store does not load the other's client library.
    if is_postgresql(url):
        from solstice_orchestrator.store.postgresql import PostgreSQLStore  # noqa: PLC0415

        async with PostgreSQLStore.open(url, rules=rules, clock=clock) as shared:
            yield shared
    else:
        from solstice_orchestrator.store.sqlite import SqliteStore  # noqa: PLC0415

        async with SqliteStore.open(
            sqlite_place(url, "store"), rules=rules, clock=clock or time.time
        ) as store:
            yield store


def _default_rng() -> random.Random:
    """Return a random generator that differs between processes; jitter and ids need no secrecy."""
    return random.Random(random.SystemRandom().getrandbits(128))  # noqa: S311
