"""`orchestrator run` with containers: strangers' code by the operator's word, and a killed orchestrator."""

import asyncio
from pathlib import Path

import httpx2

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store import JobStore
from tests.gated_jobs import Commit, all_ended, publish_requests, read_log, wait_for_jobs, wait_for_log
from tests.polling import wait_until, wait_until_true
from tests.repositories import Repository
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.podman import IMAGE, PodmanStore

SECRET = "heron-otter-7731"
WORKFLOW = f"""
defaults network=default {{ image "{IMAGE}" }}
job "look" {{
    step run="cat /proc/net/dev; env; echo it ends"
    step run=#"exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT 10.9.0.1:443 HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3"#
}}
job "take" {{ secret "DEPLOY_KEY"; step run="echo never" }}
"""


def commit_of(folder: Path, workflow: str) -> Commit:
    repository = Repository(folder / "repository")
    return Commit(repository, repository.commit({".solstice/workflow.kdl": workflow}))


async def test_strangers_run_in_containers_by_the_operators_word_without_network_and_secrets(
    shared_files: SharedFiles, podman: PodmanStore, store: JobStore, tmp_path: Path
) -> None:
    rules = tmp_path / "secrets.toml"
    rules.write_text('[[rules]]\nrepositories = ["**"]\nsecrets = { DEPLOY_KEY = "env:PLANTED" }\n')
    settings = {
        **podman.environment,
        "EXECUTOR": "podman",
        "SECRETS_CONFIG": str(rules),
        "PLANTED": SECRET,
    }
    commit = commit_of(tmp_path, WORKFLOW)
    with orchestrator(shared_files, **settings) as process:
        await publish_requests(shared_files, commit, trusted=False)

        async def is_refused() -> bool:
            runs = (await store.runs(limit=10)).runs
            return [run.state for run in runs] == [RunState.ERRORED] and "UNTRUSTED_RUNS" in runs[0].detail

        await wait_until_true("it is refused", is_refused)
        process.terminate()
        assert await asyncio.to_thread(process.ended) == 0
    assert await store.jobs(limit=10) == []
    allowed = {"UNTRUSTED_EGRESS": "*", "UNTRUSTED_EGRESS_PRIVATE": "10.1.0.0/16"}
    with orchestrator(shared_files, **settings, UNTRUSTED_RUNS="isolated", **allowed) as process:
        await publish_requests(shared_files, commit, trusted=False)
        jobs = {job.name: job for job in await wait_for_jobs(store, all_ended)}
        path = f"jobs/{jobs['look'].job_id}"
        async with httpx2.AsyncClient(base_url=process.url) as client:
            shown = (await client.get(f"/api/v1/{path}/attempts")).json()["attempts"][0]["image"]
            page = (await client.get(f"/{path}")).text

            async def is_counted() -> bool:
                metrics = (await client.get("/metrics")).text
                return 'solstice_egress_requests_total{result="address_refused"} 1.0' in metrics

            await wait_until_true("the refusal is counted", is_counted)
    assert (jobs["look"].state, jobs["take"].reason) == (JobState.SUCCEEDED, Reason.SECRET_MISSING)
    digest = podman.run("image", "inspect", "--format", "{{.Digest}}", IMAGE).strip()
    assert shown == f"{IMAGE}@{digest}"
    assert shown in page
    log = (await read_log(store, jobs["look"].job_id)).decode()
    assert "lo:" in log
    assert "eth0" not in log
    assert SECRET not in log
    assert "never" not in (await read_log(store, jobs["take"].job_id)).decode()


async def test_an_orchestrator_without_containers_removes_those_of_a_killed_one_beside_it(
    shared_files: SharedFiles, podman: PodmanStore, store: JobStore, tmp_path: Path
) -> None:
    commit = commit_of(
        tmp_path, f'job a network=none {{ image "{IMAGE}"; step run="echo begun; sleep 1000" }}'
    )
    with (
        orchestrator(shared_files, **podman.environment, CAPACITY_MAP="other=1"),
        orchestrator(shared_files, **podman.environment, EXECUTOR="podman") as killed,
    ):
        await publish_requests(shared_files, commit)
        (job,) = await wait_for_jobs(store, lambda jobs: [job.state for job in jobs] == [JobState.RUNNING])
        await wait_for_log(store, job.job_id, b"begun")
        assert len(podman.containers()) == 1
        digest = podman.run("image", "inspect", "--format", "{{.Digest}}", IMAGE).strip()
        killed.kill()
        await wait_until(lambda: podman.containers() == [])
        await wait_until(lambda: len(list(shared_files.workspaces.glob("*.lock"))) == 1)
        (interrupted,) = [attempt for attempt in await store.attempts(job.job_id) if attempt.number == 1]
        assert interrupted.image == f"{IMAGE}@{digest}"
    assert podman.mounts() == []
