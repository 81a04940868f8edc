"""Schemathesis follows the OpenAPI document's links with each scope, and judges all answers.

A caller without a scope learns nothing and changes nothing; no request gets a 5xx or an answer that the
document does not describe. The store has an example of everything, and no other process works on it.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Err
from schemathesis.core.transport import Response

from solstice_common.http.tokens import TokenScope
from solstice_orchestrator.web.api.operations import CHOICES
from tests.servers.populated_web import CALLERS, CONFORMS, WebThread, document_to_walk, required_scope
from tests.servers.postgresql import PostgreSQLServer


@pytest.fixture(params=["sqlite", "postgresql"])
def web_thread(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WebThread]:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'store.db'}"
        if request.param == "postgresql":
            server: PostgreSQLServer = request.getfixturevalue("postgresql")
            url = stack.enter_context(server.database()).url
        yield stack.enter_context(WebThread(url, tmp_path).running())


LINKED: Final = {
    operation.definition.raw["operationId"]: operation
    for found in schemathesis.openapi.from_dict(document_to_walk()).get_all_operations()
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
WAYS: Final = 6
LAST: Final = "remove"
"""After this operation no link remains."""


class LinkWalk:
    """Follows every link of every operation once, first without permission, then with it."""

    def __init__(self, web_thread: WebThread, session: requests.Session) -> None:
        self._web_thread = web_thread
        self._session = session
        self._callers = web_thread.callers()
        self.seen: Counter[str] = Counter()
        """Calls by their operation and how they were answered."""
        self.links: set[tuple[str, str]] = set()
        """Those that led somewhere."""

    def step(self, name: str, path: Mapping[str, str], query: Mapping[str, str]) -> None:
        operation = LINKED[name]
        before = self._web_thread.snapshot()
        for caller, scopes in CALLERS.items():
            if required_scope(operation.method) not in scopes:
                answer = self._call(name, caller, path, query)
                assert answer.status_code == (403 if scopes else 401), (name, caller)
                assert set(answer.json()) == {"error"}
        assert self._web_thread.snapshot() == before, name
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
            base_url=self._web_thread.url, session=self._session, headers=self._callers[caller], timeout=60
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


def test_following_the_links_shows_and_changes_what_the_scopes_allow(web_thread: WebThread) -> None:
    with requests.Session() as session:
        session.trust_env = False
        walk = LinkWalk(web_thread, session)
        beginnings = {
            "api_jobs": {"limit": "2"},
            "api_runs": {"limit": "2"},
            "workersapi_workers": {},
            "scaleapi_scale": {},
            "watermarksapi_watermarks": {},
            "api_run_counts": {},
            "reportsapi_flaky": {"repository": "harbour/lighthouse"},
            "reportsapi_history": {"repository": "harbour/lighthouse", "name": "a"},
            "cachesapi_caches": {},
            "schedulesapi_add": {},
            "schedulesapi_schedules": {"limit": "2"},
        }
        for name, query in beginnings.items():
            walk.step(name, {}, query)
        walk.step("artifactsapi_artifacts", {"run_id": web_thread.running_run}, {})
        walk.step("schedulesapi_steer", {"schedule": "monthly", "action": LAST}, {})
    followed = {target for _, target in walk.links}
    only_begun = {
        "workersapi_workers",
        "scaleapi_scale",
        "watermarksapi_watermarks",
        "schedulesapi_add",
        "cachesapi_caches",
        "api_run_counts",
        "reportsapi_flaky",
        "reportsapi_history",
    }
    assert followed == LINKED.keys() - only_begun
    changed = {seen for seen in walk.seen if seen.split()[1] in {"200", "201", "202"}}
    assert {"api_cancel_run 202", "api_rerun 201", "api_prioritise 200", "workersapi_steer 202"} <= changed
    assert {"schedulesapi_add 201", "schedulesapi_edit 200", "schedulesapi_steer 202"} <= changed


def from_lists() -> Any:
    """Schemathesis's machine, without steps that invent ids: those only show a 404."""
    machine: Any = schemathesis.openapi.from_dict(document_to_walk()).as_state_machine()
    invented = {rule for rule in machine.root_rules if "_id" in rule or "_schedule_" in rule}
    for rule in invented:
        delattr(machine, rule)
    machine.root_rules -= invented
    machine._root_labels = frozenset(label for label in machine._root_labels if "{" not in label)
    return machine


class ApiMachine(from_lists()):  # type: ignore[misc]  # the class is made at run time
    """Walks through the API from a fixed state; each step is first tried without permission.

    Schemathesis draws some values past Hypothesis, so no way can be gone again or made shorter: what breaks is kept.
    """

    begun: ClassVar[Iterator[Path]]
    """The directory of each machine's store."""
    seen: ClassVar[Counter[tuple[str, int]]]
    """Answers, by method and status."""
    broken: ClassVar[list[str]]

    def setup(self) -> None:
        directory = next(self.begun)
        directory.mkdir()
        self.world = ExitStack()
        self.web_thread = self.world.enter_context(
            WebThread(f"sqlite:///{directory / 'store.db'}", directory).running()
        )
        self.callers = self.web_thread.callers()
        self.session = self.world.enter_context(requests.Session())
        self.session.trust_env = False

    def teardown(self) -> None:
        self.world.close()

    def call(self, case: schemathesis.Case[Any], **_: Any) -> Response:
        changes = required_scope(case.operation.method) is TokenScope.OPERATE
        before = self.web_thread.snapshot() if changes else None
        for caller, scopes in CALLERS.items():
            if required_scope(case.operation.method) not in scopes:
                answer = self.called(case, caller)
                if answer.status_code != (403 if scopes else 401) or set(answer.json()) != {"error"}:
                    self.broken.append(f"{caller}: {case} {answer.status_code} {answer.text}")
        if changes and self.web_thread.snapshot() != before:
            self.broken.append(f"changed by somebody who may not: {case}")
        return self.called(case, "everything")

    def called(self, case: schemathesis.Case[Any], caller: str) -> Response:
        return case.call(
            base_url=self.web_thread.url, session=self.session, headers=self.callers[caller], timeout=60
        )

    def validate_response(self, response: Response, case: schemathesis.Case[Any], **_: Any) -> None:
        self.seen[case.operation.method, response.status_code] += 1
        try:
            case.validate_response(response, checks=CONFORMS)
        except FailureGroup as failures:
            self.broken.append(f"{case}: {failures.message}\n{failures.exceptions}")


def test_schemathesis_finds_its_own_way_and_nothing_that_breaks_a_promise(tmp_path: Path) -> None:
    ApiMachine.begun = (tmp_path / str(number) for number in itertools.count())
    ApiMachine.seen, ApiMachine.broken = Counter(), []
    while (gone := sum(1 for _ in tmp_path.iterdir())) < WAYS:
        # Hypothesis sometimes notices that a path cannot be repeated, and ends the search; then the next one
        # begins.
        with suppress(FlakyStrategyDefinition):
            ApiMachine.run(
                settings=settings(
                    max_examples=WAYS - gone,
                    stateful_step_count=10,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                )
            )
    assert ApiMachine.broken == []
    assert ApiMachine.seen["get", 200] > 0
    assert sum(ApiMachine.seen["post", status] for status in (200, 201, 202)) > 0, ApiMachine.seen
