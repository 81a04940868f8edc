"""Where requests, runs, jobs, attempts, logs and the outbox are kept; the URL's scheme chooses."""

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from solstice_common.settings import sqlite_path
from solstice_orchestrator.store.protocol import JobStore

__all__ = ["JobStore", "open_store"]


@asynccontextmanager
async def open_store(
    url: str,
    *,
    clock: Callable[[], float] = time.time,
    rng: random.Random | None = None,
    public_url: str | None = None,
    lease_seconds: float = 60.0,
    retry_base_seconds: float | None = None,
) -> AsyncIterator[JobStore]:
    """The store at `url` (`sqlite:///FILE`), with its schema brought up to date.

    `public_url` is where readers find the pages; statuses link to it. Raises ConfigurationError for a URL of no
    known scheme, StoreUnavailable, SchemaTooNew.
    """
    path = sqlite_path(url)
    # Imported late: a process that uses one store does not pay for the other's client library.
    from solstice_orchestrator.identifiers import id_source  # noqa: PLC0415
    from solstice_orchestrator.retries import RETRY_BASE_SECONDS  # noqa: PLC0415
    from solstice_orchestrator.store.sqlite import SqliteStore, default_rng  # noqa: PLC0415
    from solstice_orchestrator.store.transaction import Rules  # noqa: PLC0415

    rng = rng or default_rng()
    rules = Rules(
        new_id=id_source(rng),
        rng=rng,
        public_url=public_url.rstrip("/") if public_url else None,
        lease_seconds=lease_seconds,
        retry_base_seconds=RETRY_BASE_SECONDS if retry_base_seconds is None else retry_base_seconds,
        holder=f"{rng.getrandbits(64):016x}",
    )
    async with SqliteStore.open(path, rules=rules, clock=clock) as store:
        yield store
