"""Schemathesis tests the OpenAPI document against a real service, with each scope and without.

Derandomized: every run sends the same requests.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CheckFunction, load_all_checks, not_a_server_error
from schemathesis.core.result import Err
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from solstice_common.http.tokens import TokenScope
from solstice_forge.api.openapi import document
from tests.servers.forge_integration import forge_integration
from tests.servers.orchestrator import SharedFiles
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.tokens import bearer, make_token

NEEDED: Final = {
    "/api/v1/jobs": TokenScope.ENQUEUE,
    "/api/v1/deliveries": TokenScope.READ,
    "/api/v1/deliveries/{id}": TokenScope.READ,
}
CONFORMS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
BRIEFLY: Final = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

Case = schemathesis.Case[Any]


def _without_security() -> dict[str, Any]:
    """The document without security: the tests choose the caller, not the generator."""
    shown = document()
    for methods in shown["paths"].values():
        for operation in methods.values():
            del operation["security"]
    return shown


load_all_checks()
OPERATIONS: Final = {
    operation.path: operation
    for found in schemathesis.openapi.from_dict(_without_security()).get_all_operations()
    if not isinstance(found, Err)
    for operation in [found.ok()]
}


@dataclass(kw_only=True)
class Service:
    """A running service, and how many jobs it has to know of."""

    url: str
    callers: dict[str, dict[str, str]]
    """The callers by the scope of their token; `nobody` has none."""
    session: requests.Session
    accepted: set[str] = field(default_factory=set)

    def send(self, case: Case, caller: str) -> Response:
        case.headers.pop("Authorization", None)
        answer = case.call(base_url=self.url, session=self.session, headers=self.callers[caller])
        if answer.status_code == 202:
            self.accepted.add(answer.json()["delivery_id"])
        return answer

    def stored(self) -> set[str]:
        """The ids of all jobs that are kept, copies left aside."""
        found: set[str] = set()
        after: int | None = None
        while True:
            older = f"&after={after}" if after else ""
            page = self.session.get(
                f"{self.url}/api/v1/deliveries?source=api&decision=accepted&limit=200{older}",
                headers=self.callers[TokenScope.READ],
                timeout=60,
            ).json()
            found |= {delivery["delivery_id"] for delivery in page["deliveries"]}
            after = page["next"]
            if after is None:
                return found


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, session: requests.Session
) -> Iterator[Service]:
    shared_files = SharedFiles(directory=tmp_path_factory.mktemp("with-tokens"))
    tokens = Path(shared_files.directory / "tokens.json")
    callers: dict[str, dict[str, str]] = {"nobody": {}, "stranger": bearer("solstice_made-up")}
    callers |= {scope: bearer(make_token(tokens, scope, scope)) for scope in TokenScope}
    with ExitStack() as stack:
        inbox = {}
        if request.param == "postgresql":
            server: PostgreSQLServer = request.getfixturevalue("postgresql")
            inbox = {"FORGE_INBOX_URL": stack.enter_context(server.database()).url}
        running = stack.enter_context(
            forge_integration(shared_files, FORGE_API_PER_MINUTE="1000000", **inbox)
        )
        yield Service(url=running.url, callers=callers, session=session)


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory, session: requests.Session) -> Iterator[Service]:
    shared_files = SharedFiles(directory=tmp_path_factory.mktemp("without-tokens"))
    callers: dict[str, dict[str, str]] = {
        "nobody": {},
        TokenScope.READ: {},
        "proxy": {"X-Forwarded-For": "203.0.113.7"},
    }
    with forge_integration(shared_files, FORGE_API_PER_MINUTE="1000000") as running:
        yield Service(url=running.url, callers=callers, session=session)


each_operation = pytest.mark.parametrize("path", NEEDED)


def test_the_document_has_no_other_operations() -> None:
    assert set(OPERATIONS) == set(NEEDED)


@each_operation
def test_what_the_document_allows_is_answered_as_it_says(service: Service, path: str) -> None:
    _hold(service, path, schemathesis.GenerationMode.POSITIVE)
    assert service.accepted or path != "/api/v1/jobs", "no job was good enough to be taken"


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/deliveries"])
def test_what_the_document_forbids_is_refused(service: Service, path: str) -> None:
    _hold(service, path, schemathesis.GenerationMode.NEGATIVE, negative_data_rejection)


def _hold(service: Service, path: str, mode: schemathesis.GenerationMode, *more: CheckFunction) -> None:
    right = NEEDED[path]

    @BRIEFLY
    @given(OPERATIONS[path].as_strategy(mode))
    def check_case(case: Case) -> None:
        for caller in service.callers:
            answer = service.send(case, caller)
            expected = {"nobody": 401, "stranger": 401, right: None}.get(caller, 403)
            if expected is None:
                assert answer.status_code not in {401, 403}
            else:
                assert answer.status_code == expected
                assert set(answer.json()) == {"error", "reason"}
            case.validate_response(answer, checks=[*CONFORMS, *more])

    check_case()
    # Only callers with the right have changed anything.
    assert service.stored() == service.accepted


@each_operation
def test_without_tokens_it_holds_for_this_machine_and_refuses_what_a_proxy_passes_on(
    open_service: Service, path: str
) -> None:
    @BRIEFLY
    @given(OPERATIONS[path].as_strategy(schemathesis.GenerationMode.POSITIVE))
    def check_case(case: Case) -> None:
        for caller in ("nobody", "proxy"):
            answer = open_service.send(case, caller)
            assert (answer.status_code == 401) is (caller == "proxy")
            case.validate_response(answer, checks=CONFORMS)

    check_case()
    assert open_service.stored() == open_service.accepted


@pytest.mark.parametrize("value", ["%00", "a%00b", "%ff", "%ed%a0%80", "9" * 16, "'", "x" * 5000])
def test_odd_questions_of_people_and_programs_are_answered(service: Service, value: str) -> None:
    for path in (
        f"/api/v1/deliveries/{value}",
        f"/api/v1/deliveries?repository={value}",
        f"/deliveries/{value}",
        f"/deliveries?source={value}&repository={value}&reason={value}",
        f"/deliveries?before={value}",
    ):
        answer = service.session.get(service.url + path, headers=service.callers[TokenScope.READ], timeout=60)
        assert answer.status_code in {200, 400, 404, 414}, path
