"""Serves the orchestrator's web part in a thread, over a populated store.

For tests of the whole HTTP API by its OpenAPI document: those are not written for an event loop.
"""

import asyncio
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.http.access import Access
from solstice_common.http.token_file import TokenFile
from solstice_common.http.tokens import TokenScope
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord
from solstice_orchestrator.store.protocol import AttemptKey
from solstice_orchestrator.web.api.openapi import document
from solstice_orchestrator.web.api.operations import EVENTS
from solstice_orchestrator.web.app import create_app, serving
from solstice_orchestrator.web.formats.sse import OpenStreams
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.object_directory import ObjectDirectory
from tests.populated_store import populate
from tests.saved_caches import cache_place, save_cache
from tests.servers.tokens import bearer, make_token
from tests.stores import ManualClock

CONFORMS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
CALLERS: Final[dict[str, Sequence[TokenScope]]] = {
    "nobody": (),
    "read": (TokenScope.READ,),
    "enqueue": (TokenScope.ENQUEUE,),
    "operate": (TokenScope.OPERATE,),
    "everything": tuple(TokenScope),
}

load_all_checks()


def document_to_walk() -> dict[str, Any]:
    """The document without endless streams, and without tokens, which the test sends.

    Dead letters are left out: this web part has no broker. `test_web_dead_letters.py` asks each of their routes.
    """
    shown = document()
    for path in [path for path in shown["paths"] if "/dead-letters" in path]:
        del shown["paths"][path]
    for path, methods in list(shown["paths"].items()):
        for operation in methods.values():
            del operation["security"]
        if any(
            EVENTS in answer.get("content", {})
            for operation in methods.values()
            for answer in operation["responses"].values()
        ):
            del shown["paths"][path]
    return shown


def required_scope(method: str) -> TokenScope:
    """The scope that a caller needs for an answer."""
    return TokenScope.READ if method.lower() == "get" else TokenScope.OPERATE


class WebThread:
    """The web part over a store, in a thread with its own event loop."""

    def __init__(self, url: str, directory: Path) -> None:
        self._store_url = url
        self.tokens = directory / "tokens.json"
        self.url = ""
        self.running_run = ""
        """The run with an artifact."""
        self._archive = directory / "archive.tar"
        self._started = threading.Event()
        self._end: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._store: JobStore | None = None

    @contextmanager
    def running(self) -> Iterator["WebThread"]:
        thread = threading.Thread(target=self._run, name="web")
        thread.start()
        try:
            assert self._started.wait(60)
            if self._failure is not None:
                raise self._failure
            yield self
        finally:
            if self._loop is not None and self._end is not None:
                self._loop.call_soon_threadsafe(self._end.set)
            thread.join(60)

    def callers(self) -> Mapping[str, dict[str, str]]:
        """The headers of each of CALLERS.

        Call it before any request: without any token, this machine may do everything.
        """
        return {
            name: bearer(make_token(self.tokens, name, *scopes)) if scopes else {}
            for name, scopes in CALLERS.items()
        }

    def snapshot(self) -> object:
        """The whole content of the store, as readers see it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._snapshot(), self._loop).result(60)

    async def _snapshot(self) -> object:
        assert self._store is not None
        runs = (await self._store.runs(limit=1000)).runs
        jobs = await self._store.jobs(limit=1000)
        attempts = [await self._store.attempts(job.job_id) for job in jobs]
        schedules = await self._store.schedule_store.schedules(limit=1000)
        return [*runs], [*jobs], attempts, await self._store.counts(), [*schedules]

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  told to the thread that waits for the start
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        clock, streams = ManualClock(), OpenStreams()
        # The same ids each time, so that a repeated search by Hypothesis finds them.
        async with open_store(self._store_url, clock=clock, rng=random.Random(7)) as store:
            self.running_run = (await populate(store, clock)).running
            (build, *_) = await store.jobs(run_id=self.running_run, limit=1)
            artifact = ArtifactRecord(
                name="dist", digest="ab" * 32, size=1024, files=0, retention_seconds=86_400.0
            )
            key = AttemptKey(job_id=build.job_id, number=build.attempt)
            assert await store.record_artifact(key, artifact, 0) is ArtifactAnswer.STORED
            self._archive.write_bytes(bytes(1024))
            caches = CacheStore(objects=ObjectDirectory(self._archive.with_name("caches")))
            save_cache(caches, cache_place(), "pip-1")
            app = create_app(
                store=store,
                broker_health=lambda: BrokerHealth(connected=True),
                metrics=Metrics(),
                version="1.2.3",
                access=Access(file=TokenFile(self.tokens)),
                streams=streams,
                find_archive=lambda _: self._archive,
                caches=caches,
            )
            async with serving(app, streams, host="127.0.0.1", port=0) as self.url:
                self._store, self._loop, self._end = store, asyncio.get_running_loop(), asyncio.Event()
                self._started.set()
                await self._end.wait()
