"""The orchestrator's OpenAPI document lists every operation, and real answers conform to it."""

import hashlib
import typing
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.result import Err
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Mount
from typer.testing import CliRunner

from solstice_common.broker import Broker, Message, open_broker, open_dead_letter_queues
from solstice_common.http.access import Access
from solstice_common.http.token_file import TokenFile
from solstice_common.http.tokens import TokenScope
from solstice_common.messages.states import JobState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology
from solstice_orchestrator.cli import app
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.reports.values import JobReport, TestCaseResult, TestState
from solstice_orchestrator.store.artifact_records import ArtifactRecord
from solstice_orchestrator.store.records.report_records import ReportRecord
from solstice_orchestrator.web.api.openapi import PREFIX, document, render
from solstice_orchestrator.web.api.operations import EVENTS, OPERATIONS
from solstice_orchestrator.web.app import create_app
from solstice_orchestrator.web.dead_letter_access import DeadLetterAccess
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.object_directory import ObjectDirectory
from tests.browsing import browse
from tests.saved_caches import cache_place, save_cache
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.orchestrator_web import WebServer, serve_web, spec
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.tokens import bearer, make_token

CACHE: Final = hashlib.sha256(cache_place().name("pip-1").encode()).hexdigest()[:12]
CHECKED_IN: Final = Path(__file__).parents[4] / "schemas" / "openapi" / "orchestrator.json"
CONFORMS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
BRIEFLY: Final = settings(
    max_examples=8,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
FUZZED: Final = tuple(operation for operation in OPERATIONS if operation.gives != EVENTS)
"""Streams are endless, and are tested elsewhere."""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_broker(f"sqlite:///{tmp_path / 'broker.db'}", name="test") as opened:
        await opened.declare(full_topology(BrokerSettings()))
        yield opened


@pytest.fixture
async def web(tmp_path: Path, broker: Broker) -> AsyncIterator[WebServer]:
    access = DeadLetterAccess(broker=broker, settings=BrokerSettings(amqp_url=broker.url))
    (archive := tmp_path / "archive.tar").write_bytes(bytes(1024))
    caches = CacheStore(objects=ObjectDirectory(tmp_path / "caches"))
    save_cache(caches, cache_place(), "pip-1")
    async with serve_web(
        tmp_path, dead_letters=access, find_archive=lambda _: archive, caches=caches
    ) as served:
        yield served


@pytest.fixture
async def dead_letter(broker: Broker) -> str:
    """The id of the one dead letter."""
    dlx, dlq = BrokerSettings().amqp_dlx, BrokerSettings().amqp_dlq
    await broker.publish([Message(exchange=dlx, routing_key="", body=b"no JSON", type="jobrequest.v1")])
    async with open_dead_letter_queues(broker.url, name="test") as queues:
        (found,) = await browse(queues.queue(dlq), 1)
    return found.id


def test_the_checked_in_document_is_the_rendered_one() -> None:
    assert CHECKED_IN.read_bytes() == render(), (
        f"run: orchestrator openapi > schemas/openapi/{CHECKED_IN.name}"
    )
    assert CliRunner().invoke(app, ["openapi"]).output.encode() == render()


async def test_it_names_every_route_of_the_api_and_no_other(web: WebServer, tmp_path: Path) -> None:
    application = create_app(
        store=web.store,
        broker_health=lambda: web.broker,
        metrics=web.metrics,
        version="1.2.3",
        access=Access(file=TokenFile(tmp_path / "tokens.json")),
    )
    (mounted,) = (
        typing.cast("Mount", route) for route in application.routes if getattr(route, "path", "") == PREFIX
    )
    routes: Any = mounted.routes
    there = {
        (method.lower(), PREFIX + route.path)
        for route in routes
        for method in route.methods
        if method != "HEAD"
    }
    shown = {(method, path) for path, methods in document()["paths"].items() for method in methods}
    assert shown == there


async def test_it_is_served(web: WebServer) -> None:
    async with httpx2.AsyncClient(base_url=web.url, trust_env=False) as http:
        answer = await http.get("/openapi.json")
    assert (answer.status_code, answer.content) == (200, render())


async def test_real_answers_are_what_it_says(web: WebServer, dead_letter: str) -> None:
    run, jobs = await web.plan(spec("build"), spec("test", needs=["build"]))
    key = await web.claim(jobs["build"])
    await web.prints(key, "one\n", "two\n")
    artifact = ArtifactRecord(name="dist", digest="ab" * 32, size=1024, files=0, retention_seconds=3600.0)
    await web.store.record_artifact(key, artifact, 0)
    report = JobReport(
        failed=(TestCaseResult(name="bad", state=TestState.FAILED),), slowest=(TestCaseResult(name="a"),)
    )
    record = ReportRecord(report=report, commit_sha=run.commit_sha, trusted=True)
    assert await web.store.record_report(key.job_id, key.number, record)
    names = {
        "{run_id}": run.run_id,
        "{job_id}": jobs["build"],
        "{request_id}": run.request_id,
        "{artifact}": "dist",
        "{cache}": CACHE,
        "{order}": "pause",
        "{schedule}": "nightly",
        "{action}": "remove",
        "{dead_letter}": dead_letter,
        "{handling}": "drop",
    }
    bodies = {
        "/schedules": {**SCHEDULE_INPUT},
        "/schedules/{schedule}": {"cron": "@weekly"},
    }
    shown = document()
    async with httpx2.AsyncClient(base_url=web.url, timeout=60, trust_env=False) as http:
        for operation in FUZZED:
            path = operation.path
            for name, real in names.items():
                path = path.replace(name, real)
            if "{worker_id}" in path:
                continue
            if operation.path == "/jobs/{job_id}/rerun":
                # Its run has been cancelled by now, and ends with the job that runs.
                await web.finish(key, Outcome(state=JobState.CANCELLED, reason=Reason.CANCEL_REQUESTED))
            method = "post" if operation.changes else "get"
            needed = QUERIES.get(operation.path)
            if path.endswith("/priority"):
                # Everything has been cancelled by now.
                _, fresh = await web.plan(spec("another"))
                path = f"/jobs/{fresh['another']}/priority"
            body = bodies[operation.path] if operation.body else None
            answer = await http.request(method, PREFIX + path, params=needed, json=body)
            assert answer.status_code == operation.status, path
            given = shown["paths"][PREFIX + operation.path][method]["responses"][str(operation.status)][
                "content"
            ]
            ((media_type, content),) = given.items()
            assert answer.headers["content-type"].partition(";")[0] == media_type
            if media_type == "application/json":
                schema = {"components": shown["components"], **content["schema"]}
                Draft202012Validator(schema).validate(answer.json())
                assert answer.json()


QUERIES: Final[Mapping[str, Mapping[str, str]]] = {
    "/jobs/{job_id}/priority": {"priority": "high"},
    "/tests/flaky": {"repository": "harbour/lighthouse"},
    "/tests/history": {"repository": "harbour/lighthouse", "name": "bad"},
}
SCHEDULE_INPUT: Final = {
    "name": "nightly",
    "repo_url": "https://forge.example/harbour/lighthouse.git",
    "branch": "main",
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
}


@dataclass(frozen=True, kw_only=True)
class Service:
    url: str
    callers: dict[str, dict[str, str]]
    session: requests.Session


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    shared_files = SharedFiles(directory=tmp_path_factory.mktemp("with-tokens"))
    tokens = shared_files.directory / "tokens.json"
    callers: dict[str, dict[str, str]] = {"nobody": {}}
    callers |= {scope: bearer(make_token(tokens, scope, scope)) for scope in TokenScope}
    with ExitStack() as stack:
        database = {}
        if request.param == "postgresql":
            server: PostgreSQLServer = request.getfixturevalue("postgresql")
            database = {"DATABASE_URL": stack.enter_context(server.database()).url}
        running = stack.enter_context(orchestrator(shared_files, **database))
        session = stack.enter_context(requests.Session())
        session.trust_env = False
        yield Service(url=running.url, callers=callers, session=session)


def _without_security() -> dict[str, Any]:
    shown = document()
    for methods in shown["paths"].values():
        for operation in methods.values():
            del operation["security"]
    return shown


load_all_checks()
GENERATED: Final[dict[tuple[str, str], Any]] = {
    (operation.path, operation.method): operation
    for found in schemathesis.openapi.from_dict(_without_security()).get_all_operations()
    if not isinstance(found, Err)
    for operation in [found.ok()]
}


@pytest.mark.parametrize("name", ["%00", "%ff", "%ed%a0%80", "x" * 5000, "'"])
def test_odd_names_are_not_found(service: Service, name: str) -> None:
    for path in ("runs", "jobs", "requests", "workers", "schedules"):
        answer = service.session.get(
            f"{service.url}/api/v1/{path}/{name}", headers=service.callers[TokenScope.READ], timeout=60
        )
        assert answer.status_code == 404


def test_odd_questions_find_nothing(service: Service) -> None:
    for query, status in {"repository=%00": 400, "repository=%ff": 200, "after=%00": 400}.items():
        answer = service.session.get(
            f"{service.url}/api/v1/runs?{query}", headers=service.callers[TokenScope.READ], timeout=60
        )
        assert answer.status_code == status


@pytest.mark.parametrize("bad_path", ["runs?repository=%00", "runs/%00"])
def test_who_asks_is_looked_at_before_what_is_asked(service: Service, bad_path: str) -> None:
    answers = {
        caller: service.session.get(f"{service.url}/api/v1/{bad_path}", headers=headers, timeout=60)
        for caller, headers in service.callers.items()
        if caller != TokenScope.READ
    }
    assert {caller: answer.status_code for caller, answer in answers.items()} == {
        "nobody": 401,
        TokenScope.ENQUEUE: 403,
        TokenScope.OPERATE: 403,
    }


@pytest.mark.parametrize(
    ("method", "path"), [("post" if each.changes else "get", each.path) for each in FUZZED]
)
def test_it_holds_for_whom_it_says(service: Service, method: str, path: str) -> None:
    right = TokenScope.OPERATE if method == "post" else TokenScope.READ

    @BRIEFLY
    @given(GENERATED[PREFIX + path, method].as_strategy(schemathesis.GenerationMode.POSITIVE))
    def holds(case: schemathesis.Case[Any]) -> None:
        for caller, headers in service.callers.items():
            answer = case.call(base_url=service.url, session=service.session, headers=headers)
            if caller == right:
                assert answer.status_code not in {401, 403}
            else:
                assert answer.status_code == (401 if caller == "nobody" else 403)
            case.validate_response(answer, checks=CONFORMS)

    holds()
