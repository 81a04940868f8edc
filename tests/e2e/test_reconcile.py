"""A push during an outage is found at the forge, built once and shown."""

import asyncio
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx2
import orjson
import pytest

from solstice_common.messages import Source
from tests.e2e.webhook_calls import push, secrets
from tests.polling import wait_until
from tests.repositories import Repository
from tests.servers.forge_api import TOKEN, forge_api
from tests.servers.forge_integration import START, ForgeProcess, forge_integration
from tests.servers.forge_record import HookRecord, show_heads
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.ports import free_ports
from tests.servers.service_process import base_environment

WORKFLOW: Final = 'job "build" { step "work" run="true"; }'
OFTEN: Final = {"FORGE_RECONCILE_MINUTES": "0.02"}
NEVER: Final = {"FORGE_RECONCILE_MINUTES": "0"}


def sources(directory: Path, origin: Source, url: str, repository: str) -> dict[str, str]:
    """The settings of a source of that forge, which names the repository in a rule."""
    file = directory / "sources.toml"
    file.write_text(
        f'[sources.{origin.value}]\nforge = "{origin.value}"\nurl = "{url}"\ntoken = "plain:{TOKEN}"\n'
        f'secrets = ["env:{origin.upper()}_WEBHOOK_SECRET"]\n'
        f'[[sources.{origin.value}.rules]]\nrepositories = ["{repository}"]\nevents = ["push"]\n'
    )
    return {"FORGE_CONFIG": str(file), **secrets()}


async def reconciled(
    shared_files: SharedFiles, settings: dict[str, str], *words: str
) -> tuple[int, Any, str]:
    """Run the command beside the service: exit code, JSON, and its messages for people.

    Asked again while the service itself compares, as the command advises.
    """
    code, report, delivered = await _reconciled_once(shared_files, settings, *words)
    while code == 1 and "it is being compared by another process now" in str(report):
        await asyncio.sleep(0.1)
        code, report, delivered = await _reconciled_once(shared_files, settings, *words)
    return code, report, delivered


async def _reconciled_once(
    shared_files: SharedFiles, settings: dict[str, str], *words: str
) -> tuple[int, Any, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", START, "reconcile", "--json", *words),
        env={
            **base_environment(),
            "FORGE_INBOX_URL": f"sqlite:///{shared_files.directory / 'inbox.db'}",
            **settings,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, delivered = await process.communicate()
    return process.returncode or 0, orjson.loads(printed or b"null"), delivered.decode()


async def started(
    stack: ExitStack, shared_files: SharedFiles, port: int, settings: dict[str, str]
) -> ForgeProcess:
    return await asyncio.to_thread(
        stack.enter_context, forge_integration(shared_files, **{"FORGE_PORT": str(port), **settings})
    )


async def entries(url: str) -> list[dict[str, Any]]:
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        found: list[dict[str, Any]] = (await client.get("/api/v1/deliveries")).json()["deliveries"]
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("origin", [Source.GITHUB, Source.GITLAB])
async def test_delivery_that_did_not_arrive_is_sent_again_by_the_forge_and_built_once(
    tmp_path: Path, origin: Source
) -> None:
    project = Repository(tmp_path / "anvil")
    commit = project.commit({".solstice/workflow.kdl": WORKFLOW})
    shared_files, (port,) = SharedFiles(directory=tmp_path), free_ports(1)
    call = push(origin, project.url, commit, now=time.time())
    payload = orjson.loads(call.body)
    repository = (
        payload["repository"]["full_name"]
        if origin is Source.GITHUB
        else payload["project"]["path_with_namespace"]
    )
    name = "push" if origin is Source.GITHUB else "Push Hook"
    async with forge_api(origin) as forge:
        settings = sources(tmp_path, origin, forge.url, repository)
        secret = settings[f"{origin.upper()}_WEBHOOK_SECRET"] if origin is Source.GITHUB else "whsec"
        if origin is Source.GITLAB:
            settings["GITLAB_WEBHOOK_SECRET"] = secret
        record = HookRecord(
            forge, url=lambda: f"http://127.0.0.1:{port}/webhooks/{origin.value}", secret=secret
        )
        record.hook(f"{'repos' if origin is Source.GITHUB else 'projects'}/{repository}")
        # No server listens there.
        await record.event("lost-1", name, call.body)
        assert [each.status for each in record.hooks[0].tried] == [0]
        with ExitStack() as stack:
            receiving = await started(stack, shared_files, port, {**settings, **OFTEN})
            await asyncio.to_thread(
                stack.enter_context,
                orchestrator(shared_files, PUBLIC_URL="https://ci.example", EXECUTOR="process"),
            )
            shown = (repository, commit, "solstice")
            await wait_until(lambda: forge.shown.get(shown, {}).get("state") == "success")
            await record.settled()
            assert [each.status for each in record.hooks[0].tried] == [0, 202]
            (entry,) = await entries(receiving.url)
            assert (entry["delivery_id"], entry["decision"], entry["reason"]) == (
                "lost-1",
                "accepted",
                "push",
            )
            code, (report,), delivered = await reconciled(shared_files, settings)
            assert (code, report["sent"], report["troubles"], report["repositories"]) == (0, [], [], 1)
            assert repository in delivered
            assert len(record.requested) == 1
            async with httpx2.AsyncClient(base_url=receiving.url, trust_env=False) as client:
                listed = (await client.get("/deliveries")).text
                delivery = (await client.get(f"/deliveries/{entry['number']}")).text
            assert "Compared with the forges" in listed
            assert "Asked for again" in delivery
            receiving.terminate()
            assert await asyncio.to_thread(receiving.ended) == 0


@pytest.mark.timeout(240)
async def test_branch_that_moved_on_unheard_is_built_once_and_its_late_webhook_is_a_copy(
    tmp_path: Path,
) -> None:
    project = Repository(tmp_path / "anvil")
    first = project.commit({".solstice/workflow.kdl": WORKFLOW})
    second = project.commit({"more": "of it"})
    shared_files, (port,) = SharedFiles(directory=tmp_path), free_ports(1)
    reported, late = (push(Source.FORGEJO, project.url, each, now=time.time()) for each in (first, second))
    repository = orjson.loads(reported.body)["repository"]["full_name"]
    branch = (repository, "refs/heads/main")
    async with (
        forge_api(Source.FORGEJO) as forge,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        show_heads(forge, clone_urls={repository: project.url})
        settings = sources(tmp_path, Source.FORGEJO, forge.url, repository)
        with ExitStack() as stack:
            receiving = await started(stack, shared_files, port, {**settings, **NEVER})
            answer = await client.post(
                "/webhooks/forgejo", content=reported.body, headers=dict(reported.headers)
            )
            assert answer.status_code == 202
            receiving.terminate()
            assert await asyncio.to_thread(receiving.ended) == 0
        forge.refs[branch] = second
        code, (report,), _ = await reconciled(shared_files, settings, "--dry-run")
        assert (code, [each["commit_sha"] for each in report["made"]]) == (0, [second])
        with ExitStack() as stack:
            receiving = await started(stack, shared_files, port, {**settings, **OFTEN})
            await asyncio.to_thread(
                stack.enter_context,
                orchestrator(shared_files, PUBLIC_URL="https://ci.example", EXECUTOR="process"),
            )
            await wait_until(
                lambda: forge.shown.get((repository, second, "solstice"), {}).get("state") == "success"
            )
            answer = await client.post("/webhooks/forgejo", content=late.body, headers=dict(late.headers))
            assert (answer.status_code, answer.json()["decision"]) == (200, "duplicate")
            copy, made, _ = await entries(receiving.url)
            assert (made["reason"], made["decision"]) == ("reconciled", "accepted")
            assert copy["request_ids"] == made["request_ids"]
            assert copy["repeats"] == made["number"]
            receiving.terminate()
            assert await asyncio.to_thread(receiving.ended) == 0
