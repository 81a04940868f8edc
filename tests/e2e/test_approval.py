"""A stranger's change waits for an approval, from the webhook to the running job."""

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from solstice_common.messages import Source
from solstice_forge.forges.samples import sign
from tests.e2e.test_cli import run_of, wait_for
from tests.servers.solstice_up import Repository, SolsticeUp, repository, solstice_up

WORKFLOW = 'job "test" { step "say" run="echo the stranger says hello"; }'
NUMBER = 7


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolsticeUp]:
    with solstice_up(tmp_path_factory.mktemp("up") / "state", "--untrusted-runs", "approved") as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    return repository(tmp_path / "anvil", {".solstice/workflow.kdl": WORKFLOW})


def proposed(up: SolsticeUp, project: Repository) -> dict[str, Any]:
    """What forge-integration answers to a change request from a fork of the project."""
    base = {"full_name": "smith/anvil", "clone_url": project.folder.as_uri()}
    fork = {"full_name": "gull/anvil", "clone_url": "https://forge.example/gull/anvil.git"}
    body = json.dumps(
        {
            "action": "opened",
            "number": NUMBER,
            "pull_request": {
                "head": {"ref": "hello", "sha": project.head, "repo": fork},
                "base": {"ref": "main", "sha": project.head, "repo": base},
            },
            "repository": base,
            "sender": {"login": "gull"},
        }
    ).encode()
    secret = json.loads((up.home / "webhook-secrets.json").read_text())["forgejo"]
    headers = sign(
        Source.FORGEJO,
        secret,
        event="pull_request",
        body=body,
        delivery_id=str(uuid.uuid4()),
        now=time.time(),
    )
    answer: dict[str, Any] = (
        httpx2.post(f"{up.webhooks}/forgejo", content=body, headers=headers, trust_env=False)
        .raise_for_status()
        .json()
    )
    return answer


def waiting_run(up: SolsticeUp, project: Repository) -> dict[str, Any]:
    """A run of a stranger's change whose job waits for approval."""
    answer = proposed(up, project)
    assert answer["decision"] == "accepted"
    run = run_of(up, answer["request_ids"][0], "waiting")
    (job,) = up.api(f"/runs/{run['run_id']}")["jobs"]
    assert job["state"] == "approval"
    return run


def test_stranger_s_change_runs_once_it_is_approved(up: SolsticeUp, project: Repository) -> None:
    run = waiting_run(up, project)
    assert f"solstice approve {run['run_id']}" in up.solstice("why", run["run_id"]).stdout
    output = up.solstice("approve", run["run_id"]).stdout
    assert "1 job" in output
    assert project.head[:10] in output
    wait_for(lambda: up.api(f"/runs/{run['run_id']}")["state"] == "succeeded")
    assert "the stranger says hello" in up.solstice("logs", run["run_id"]).stdout
    assert "nothing of run" in up.solstice("approve", run["run_id"]).stdout


def test_page_has_a_button_for_it(up: SolsticeUp, project: Repository) -> None:
    run = waiting_run(up, project)
    page = f"{up.page}/runs/{run['run_id']}"
    assert f"/runs/{run['run_id']}/approve" in httpx2.get(page, trust_env=False).text
    answer = httpx2.post(f"{page}/approve", headers={"Origin": up.page}, trust_env=False)
    assert answer.status_code == 303
    wait_for(lambda: up.api(f"/runs/{run['run_id']}")["state"] == "succeeded")
    assert f"/runs/{run['run_id']}/approve" not in httpx2.get(page, trust_env=False).text


def test_unapproved_change_ends_with_its_run(up: SolsticeUp, project: Repository) -> None:
    run = waiting_run(up, project)
    up.solstice("cancel", run["run_id"])
    assert up.json("approve", run["run_id"])["state"] == "cancelled"
