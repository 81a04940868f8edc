"""Schemathesis walks along the links of the OpenAPI document, as nobody and with each scope.

Whoever lacks a scope learns nothing and changes nothing; nothing that is said is answered with a 5xx or otherwise than
the document says. The store is one in which something of everything has happened, and nobody else works on it.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from solstice_common.access import Access
from solstice_common.broker.protocol import BrokerHealth
from solstice_common.token_file import TokenFile
from solstice_common.tokens import Scope
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.web.app import create_app
from solstice_orchestrator.web.openapi import EVENTS, document
from solstice_orchestrator.web.server import serving
from solstice_orchestrator.web.sse import Streams
from tests.lived_in import live_in
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.tokens import bearer, make_token
from tests.stores import Clock

CONFORMS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
CALLERS: Final[dict[str, Sequence[Scope]]] = {
    "nobody": (),
    "read": (Scope.READ,),
    "enqueue": (Scope.ENQUEUE,),
    "operate": (Scope.OPERATE,),
    "read and operate": (Scope.READ, Scope.OPERATE),
}

load_all_checks()


def walked() -> dict[str, Any]:
    """The document without streams, which go on for ever, and without its tokens, which the test sends."""
    shown = document()
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


class Served:
    """The web part over a store, in a thread with an event loop of its own."""

    def __init__(self, url: str, directory: Path) -> None:
        self._store_url = url
        self.tokens = directory / "tokens.json"
        self.url = ""
        self._started = threading.Event()
        self._end: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._store: JobStore | None = None

    @contextmanager
    def running(self) -> Iterator["Served"]:
        thread = threading.Thread(target=self._run, name="served")
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

    def picture(self) -> object:
        """All that is in the store, as readers see it."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._picture(), self._loop).result(60)

    async def _picture(self) -> object:
        assert self._store is not None
        runs = (await self._store.runs(limit=1000)).runs
        jobs = await self._store.jobs(limit=1000)
        attempts = [await self._store.attempts(job.job_id) for job in jobs]
        return [*runs], [*jobs], attempts, await self._store.counts()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  told to the thread that waits for the start
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        clock, streams = Clock(), Streams()
        async with open_store(self._store_url, clock=clock) as store:
            await live_in(store, clock)
            app = create_app(
                store=store,
                broker_health=lambda: BrokerHealth(connected=True),
                metrics=Metrics(),
                version="1.2.3",
                access=Access(file=TokenFile(self.tokens)),
                streams=streams,
            )
            async with serving(app, streams, host="127.0.0.1", port=0) as self.url:
                self._store, self._loop, self._end = store, asyncio.get_running_loop(), asyncio.Event()
                self._started.set()
                await self._end.wait()


@pytest.fixture(params=["sqlite", "postgresql"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'store.db'}"
        if request.param == "postgresql":
            server: PostgreSQLServer = request.getfixturevalue("postgresql")
            url = stack.enter_context(server.database()).url
        yield stack.enter_context(Served(url, tmp_path).running())


@pytest.mark.parametrize("caller", CALLERS)
def test_whoever_walks_the_links_sees_and_changes_what_its_scopes_allow(served: Served, caller: str) -> None:
    scopes = CALLERS[caller]
    # While there is no token, this machine may do everything: there is always somebody's.
    make_token(served.tokens, "somebody", Scope.READ)
    headers = bearer(make_token(served.tokens, "walker", *scopes)) if scopes else {}
    before = served.picture()
    answered: set[tuple[str, int]] = set()
    with requests.Session() as session:
        session.trust_env = False

        class Walk(schemathesis.openapi.from_dict(walked()).as_state_machine()):  # type: ignore[misc]  # made at run time
            def get_call_kwargs(self, case: schemathesis.Case[Any]) -> dict[str, Any]:
                return {"base_url": served.url, "headers": headers, "session": session, "timeout": 60}

            def validate_response(self, response: Response, case: schemathesis.Case[Any], **_: Any) -> None:
                needed = Scope.READ if case.method.upper() == "GET" else Scope.OPERATE
                answered.add((case.method.upper(), response.status_code))
                if needed in scopes:
                    assert response.status_code not in {401, 403}
                else:
                    assert response.status_code == (403 if scopes else 401)
                    assert set(response.json()) == {"error"}
                case.validate_response(response, checks=CONFORMS)

        run_state_machine_as_test(
            Walk,
            settings=settings(
                max_examples=12,
                stateful_step_count=12,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert {method for method, _ in answered} == {"GET", "POST"}
    if Scope.OPERATE not in scopes:
        assert served.picture() == before
    if Scope.READ in scopes:
        assert ("GET", 200) in answered
