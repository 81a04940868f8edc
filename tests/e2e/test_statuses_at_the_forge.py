"""Each of four forges sends a push and shows how its build ended."""

import asyncio
import time
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import pytest

from solstice_common.messages import Source
from tests.e2e.webhook_calls import push, secrets
from tests.polling import wait_until
from tests.repositories import Repository
from tests.servers.forge_api import ForgeApi, forge_api
from tests.servers.forge_integration import forge_integration
from tests.servers.orchestrator import SharedFiles, orchestrator

WORKFLOW: Final = 'job "build" { step "work" run="true"; }\njob "lint" { step "work" run="exit 3"; }'
SUCCESS: Final = {Source.GITLAB: "success"}
FAILURE: Final = {Source.GITLAB: "failed"}
FORGES: Final = (Source.GITHUB, Source.FORGEJO, Source.GITEA, Source.GITLAB)


def table(forge: ForgeApi) -> str:
    name = (
        "GITLAB_SIGNING_TOKEN" if forge.origin is Source.GITLAB else f"{forge.origin.upper()}_WEBHOOK_SECRET"
    )
    return (
        f'[sources.{forge.origin.value}]\nforge = "{forge.origin.value}"\nurl = "{forge.url}"\n'
        f'secrets = ["env:{name}"]\ntoken = "plain:{forge.token}"\n'
    )


def states(forge: ForgeApi, commit: str) -> dict[str, str]:
    """What the commit shows, by context."""
    return {key[2]: shown["state"] for key, shown in forge.shown.items() if key[1] == commit}


def shows(forge: ForgeApi, commit: str, expected: dict[str, str]) -> bool:
    return states(forge, commit) == expected


@pytest.mark.timeout(240)
async def test_every_forge_shows_how_a_push_was_built(tmp_path: Path) -> None:
    project = Repository(tmp_path / "anvil")
    commit = project.commit({".solstice/workflow.kdl": WORKFLOW})
    shared_files = SharedFiles(directory=tmp_path)
    async with AsyncExitStack() as fakes:
        forges = [await fakes.enter_async_context(forge_api(origin)) for origin in FORGES]
        config = tmp_path / "sources.toml"
        config.write_text("\n".join(map(table, forges)))
        with ExitStack() as stack:
            receiving = await asyncio.to_thread(
                stack.enter_context,
                forge_integration(shared_files, FORGE_CONFIG=str(config), **secrets()),
            )
            await asyncio.to_thread(
                stack.enter_context,
                orchestrator(shared_files, PUBLIC_URL="https://ci.example", EXECUTOR="process"),
            )
            async with httpx2.AsyncClient(base_url=receiving.url, trust_env=False) as client:
                for origin in FORGES:
                    call = push(origin, project.url, commit, now=time.time())
                    answer = await client.post(
                        f"/webhooks/{origin.value}", content=call.body, headers=dict(call.headers)
                    )
                    assert answer.status_code == 202, answer.text
            for forge in forges:
                success, failure = (
                    SUCCESS.get(forge.origin, "success"),
                    FAILURE.get(forge.origin, "failure"),
                )
                final = {"solstice": failure, "solstice/build": success, "solstice/lint": failure}
                await wait_until(partial(shows, forge, commit, final))
            receiving.terminate()
            assert await asyncio.to_thread(receiving.ended) == 0
    for forge in forges:
        for shown in forge.shown.values():
            assert shown["target_url"].startswith("https://ci.example/")
        descriptions = {key[2]: shown["description"] for key, shown in forge.shown.items()}
        assert "exit code 3" in descriptions["solstice/lint"]
        assert descriptions["solstice/build"] == "Succeeded"
