"""A comment cancels the jobs of a change request, through real processes."""

import asyncio
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from solstice_common.messages import Source
from solstice_forge.forges.samples import sign
from tests.e2e.test_cli import run_of, wait_for
from tests.e2e.webhook_calls import secrets
from tests.polling import wait_until
from tests.repositories import Repository
from tests.servers.forge_api import ForgeApi, forge_api
from tests.servers.forge_integration import forge_integration
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.solstice_up import SolsticeUp, solstice_up

WORKFLOW: Final = (
    'job "build" { step "work" run="sleep 600"; }\njob "later" { needs "build"; step "work" run="true"; }'
)
NUMBER: Final = 7
NAME: Final = "smith/anvil"


def opened(repository: Repository, commit: str) -> dict[str, Any]:
    """A change request by gull from a branch of the repository itself."""
    base = {"full_name": NAME, "clone_url": repository.url}
    side = {"sha": commit, "repo": base}
    return {
        "action": "opened",
        "number": NUMBER,
        "pull_request": {"head": {"ref": "hello", **side}, "base": {"ref": "main", **side}},
        "repository": base,
        "sender": {"login": "gull"},
    }


def comment(repository: Repository, login: str) -> dict[str, Any]:
    """The webhook of a comment with `/cancel`."""
    return {
        "action": "created",
        "issue": {"number": NUMBER, "user": {"login": "gull"}, "pull_request": {}},
        "comment": {"id": uuid.uuid4().int >> 80, "body": "/cancel"},
        "repository": {"full_name": NAME, "clone_url": repository.url},
        "sender": {"login": login},
    }


def sent(webhooks: str, secret: str, event: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """What forge-integration answers to Forgejo's webhook."""
    body = json.dumps(payload).encode()
    headers = sign(
        Source.FORGEJO, secret, event=event, body=body, delivery_id=str(uuid.uuid4()), now=time.time()
    )
    answer = httpx2.post(f"{webhooks}/forgejo", content=body, headers=headers, trust_env=False)
    answer.raise_for_status()
    return dict(answer.json())


def states(forge: ForgeApi, commit: str) -> dict[str, str]:
    """What the commit shows, by context."""
    return {key[2]: shown["state"] for key, shown in forge.shown.items() if key[1] == commit}


def described(forge: ForgeApi) -> dict[str, str]:
    """The descriptions of each context."""
    return {key[2]: shown["description"] for key, shown in forge.shown.items()}


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "anvil")


@pytest.mark.timeout(240)
async def test_the_forge_shows_who_cancelled_what_ran_for_the_change_request(
    tmp_path: Path, project: Repository
) -> None:
    commit = project.commit({".solstice/workflow.kdl": WORKFLOW})
    shared_files, secret = SharedFiles(directory=tmp_path), secrets()["FORGEJO_WEBHOOK_SECRET"]
    async with forge_api(Source.FORGEJO) as forge:
        forge.rights[NAME, "ada"], forge.rights[NAME, "ben"] = "write", "read"
        config = tmp_path / "sources.toml"
        config.write_text(
            f'[sources.forgejo]\nforge = "forgejo"\nurl = "{forge.url}"\n'
            f'secrets = ["env:FORGEJO_WEBHOOK_SECRET"]\ntoken = "plain:{forge.token}"\n'
        )
        with ExitStack() as stack:
            receiving = await asyncio.to_thread(
                stack.enter_context, forge_integration(shared_files, FORGE_CONFIG=str(config), **secrets())
            )
            await asyncio.to_thread(stack.enter_context, orchestrator(shared_files, EXECUTOR="process"))

            async def send(event: str, payload: Mapping[str, Any]) -> dict[str, Any]:
                return await asyncio.to_thread(sent, f"{receiving.url}/webhooks", secret, event, payload)

            await send("pull_request", opened(project, commit))
            # Forgejo has no state for running jobs: the description says it.
            await wait_until(lambda: described(forge).get("solstice/build") == "Runs")
            assert (await send("issue_comment", comment(project, "ben")))["reason"] == "cancel"
            assert (await send("issue_comment", comment(project, "ada")))["decision"] == "accepted"
            await wait_until(
                lambda: (
                    states(forge, commit)
                    == {"solstice": "failure", "solstice/build": "failure", "solstice/later": "failure"}
                )
            )
            descriptions = described(forge)
    assert descriptions["solstice/build"] == descriptions["solstice/later"] == "Cancelled: /cancel by ada"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolsticeUp]:
    with solstice_up(tmp_path_factory.mktemp("up") / "state") as running:
        yield running


@pytest.mark.timeout(240)
def test_who_made_the_change_request_cancels_it_also_with_solstice_up(
    up: SolsticeUp, project: Repository
) -> None:
    commit = project.commit({".solstice/workflow.kdl": WORKFLOW})
    secret = json.loads((up.home / "webhook-secrets.json").read_text())["forgejo"]
    answer = sent(up.webhooks, secret, "pull_request", opened(project, commit))
    run = run_of(up, answer["request_ids"][0], "running")
    reported = sent(up.webhooks, secret, "issue_comment", comment(project, "gull"))
    assert (reported["decision"], reported["reason"]) == ("accepted", "cancel")
    wait_for(lambda: up.api(f"/runs/{run['run_id']}")["state"] == "cancelled")
    jobs = up.api(f"/runs/{run['run_id']}")["jobs"]
    assert {job["detail"] for job in jobs} == {"/cancel by gull"}
