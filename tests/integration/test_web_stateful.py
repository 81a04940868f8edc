"""Along the links of the OpenAPI document, answer by answer, as nobody and with each scope; Schemathesis judges the answers.

Whoever lacks a scope learns nothing and changes nothing; nothing that is said is answered with a 5xx or otherwise than
the document says. The store is one in which something of everything has happened, and nobody else works on it.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.result import Err
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
from solstice_orchestrator.web.openapi import CHOICES, EVENTS, document
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
    "everything": tuple(Scope),
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
        schedules = await self._store.timetable.schedules(limit=1000)
        return [*runs], [*jobs], attempts, await self._store.counts(), [*schedules]

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


LINKED: Final = {
    operation.definition.raw["operationId"]: operation
    for found in schemathesis.openapi.from_dict(walked()).get_all_operations()
    if not isinstance(found, Err)
    for operation in [found.ok()]
}
NEEDED: Final[dict[str, dict[str, str]]] = {"api_prioritise": {"priority": "high"}}
"""Queries that have to be there."""
BODIES: Final[dict[str, dict[str, str]]] = {
    "schedulesapi_add": {
        "name": "monthly",
        "repo_url": "https://forge.example/harbour/lighthouse.git",
        "branch": "main",
        "cron": "@monthly",
    },
    "schedulesapi_edit": {"cron": "*/5 * * * *"},
}
"""What is sent where something has to be."""
LAST: Final = "remove"
"""After this there is nothing more to be followed."""


class Walk:
    """Follows every link of every operation once, first as those who may not, then as the one who may."""

    def __init__(self, served: Served, session: requests.Session) -> None:
        self._served = served
        self._session = session
        # While there is no token, this machine may do everything: these are made before anybody asks.
        self._callers = {
            name: bearer(make_token(served.tokens, name, *scopes)) if scopes else {}
            for name, scopes in CALLERS.items()
        }
        self.seen: Counter[str] = Counter()
        """Calls by their operation and how they were answered."""
        self.links: set[tuple[str, str]] = set()
        """Those that led somewhere."""

    def step(self, name: str, path: Mapping[str, str], query: Mapping[str, str]) -> None:
        operation = LINKED[name]
        needed = Scope.READ if operation.method == "get" else Scope.OPERATE
        before = self._served.picture()
        for caller, scopes in CALLERS.items():
            if needed not in scopes:
                answer = self._call(name, caller, path, query)
                assert answer.status_code == (403 if scopes else 401), (name, caller)
                assert set(answer.json()) == {"error"}
        assert self._served.picture() == before, name
        answer = self._call(name, "everything", path, query)
        assert answer.status_code < 500, (name, path)
        assert answer.status_code not in {400, 401, 403, 404}, (name, path, query, answer.content)
        self.seen[f"{name} {answer.status_code}"] += 1
        if answer.status_code < 300 and "json" in answer.headers["content-type"][0]:
            self._follow(name, answer)

    def _follow(self, name: str, answer: Response) -> None:
        shown = LINKED[name].definition.raw["responses"][str(answer.status_code)]
        # What ends everything comes last.
        links = sorted(shown.get("links", {}).values(), key=lambda link: "cancel" in link["operationId"])
        for link in links:
            values = {
                parameter: value
                for parameter, expression in link["parameters"].items()
                if (value := _value(answer.json(), expression)) is not None
            }
            if values.keys() != link["parameters"].keys():
                continue
            target = link["operationId"]
            if (name, target) in self.links:
                continue
            self.links.add((name, target))
            after = values.pop("after", None)
            choices = [
                {choice: word}
                for choice, words in CHOICES.items()
                if f"{{{choice}}}" in LINKED[target].path
                for word in words
                if word != LAST
            ]
            for chosen in choices or [{}]:
                path = values | chosen
                query = NEEDED.get(target, {}) | ({"after": after, "limit": "2"} if after else {})
                self.step(target, path, query)

    def _call(self, name: str, caller: str, path: Mapping[str, str], query: Mapping[str, str]) -> Response:
        sent: dict[str, Any] = (
            {"body": {**BODIES[name]}, "media_type": "application/json"} if name in BODIES else {}
        )
        case = LINKED[name].Case(path_parameters={**path}, query={**query}, **sent)
        answer = case.call(
            base_url=self._served.url, session=self._session, headers=self._callers[caller], timeout=60
        )
        case.validate_response(answer, checks=CONFORMS)
        return answer


def _value(answer: Any, expression: str) -> str | None:
    """What a runtime expression (OpenAPI 3.1, section 4.8.20.4) means: `$response.body#/jobs/0/job_id`."""
    found = answer
    for step in expression.removeprefix("$response.body#/").split("/"):
        if isinstance(found, list):
            found = found[int(step)] if int(step) < len(found) else None
        else:
            found = None if found is None else found[step]
    assert found is None or isinstance(found, str)
    return found


def test_whoever_follows_the_links_sees_and_changes_what_its_scopes_allow(served: Served) -> None:
    with requests.Session() as session:
        session.trust_env = False
        walk = Walk(served, session)
        beginnings = {
            "api_jobs": {"limit": "2"},
            "api_runs": {"limit": "2"},
            "workersapi_workers": {},
            "scaleapi_scale": {},
            "schedulesapi_add": {},
            "schedulesapi_schedules": {"limit": "2"},
        }
        for name, query in beginnings.items():
            walk.step(name, {}, query)
        walk.step("schedulesapi_steer", {"schedule": "monthly", "action": LAST}, {})
    followed = {target for _, target in walk.links}
    assert followed == LINKED.keys() - {"workersapi_workers", "scaleapi_scale", "schedulesapi_add"}
    changed = {seen for seen in walk.seen if seen.split()[1] in {"200", "201", "202"}}
    assert {"api_cancel_run 202", "api_rerun 201", "api_prioritise 200", "workersapi_steer 202"} <= changed
    assert {"schedulesapi_add 201", "schedulesapi_edit 200", "schedulesapi_steer 202"} <= changed
