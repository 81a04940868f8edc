"""`solstice why` names every reason that a job can wait for, one after the other."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from solstice_cli.main import app
from solstice_common.broker import Message, open_broker
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology, jobs_route
from tests.builders import job_request
from tests.repositories import Repository
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.postgresql import ScratchDatabase

WAIT_SECONDS = 60
HANG = 'step "wait" run="hang"'
WORKFLOWS = {
    "needs.kdl": f"""
        job "first" runs-on="illumos" {{ {HANG}; }}
        job "second" runs-on="illumos" {{ needs "first"; {HANG}; }}
    """,
    "busy.kdl": f'job "patient" runs-on="illumos" {{ {HANG}; }}',
    "nowhere.kdl": f'job "lost" runs-on="plan9" {{ {HANG}; }}',
    "group.kdl": f"""
        concurrency "site"
        job "deploy" runs-on="linux" {{ {HANG}; }}
    """,
    "capped.kdl": f"""
        job "one" runs-on="linux" {{ {HANG}; }}
        job "two" runs-on="linux" {{ {HANG}; }}
    """,
    "learned.kdl": """
        job "one" runs-on="linux" { step "work" run="sleep 2"; }
        job "two" runs-on="linux" { step "work" run="sleep 4"; }
        job "three" runs-on="linux" { step "work" run="sleep 8"; }
    """,
    "queued.kdl": f"""
        concurrency "quay"
        job "build" runs-on="linux" {{ {HANG}; }}
        job "deploy" runs-on="linux" {{ needs "build"; {HANG}; }}
    """,
    "broken.kdl": """
        job "unlucky" runs-on="linux" { step "fetch" run="error checkout_failed"; }
    """,
}


class Deployment:
    """The orchestrator, its queue, and a repository with all the workflows."""

    def __init__(
        self, shared_files: SharedFiles, process: OrchestratorProcess, repository: Repository
    ) -> None:
        self.shared_files = shared_files
        self.process = process
        self.repository = repository
        self.commit = repository.commit({f".solstice/{name}": text for name, text in WORKFLOWS.items()})

    def ask(self, workflow: str, **changes: Any) -> str:
        """The id of the run that a request for this workflow became."""
        request = job_request(
            **{
                "repo_url": self.repository.url,
                "commit_sha": self.commit,
                "workflow_path": f".solstice/{workflow}",
                "ref": None,
                **changes,
            }
        )

        async def publish() -> None:
            settings = BrokerSettings(amqp_url=self.shared_files.broker_url)
            route = jobs_route(settings)
            async with open_broker(self.shared_files.broker_url, name="test") as broker:
                await broker.ready(30)
                await broker.declare(full_topology(settings))
                (outcome,) = await broker.publish(
                    [
                        Message(
                            exchange=route.exchange,
                            routing_key=route.routing_key,
                            body=request.encode(),
                            type="jobrequest.v1",
                        )
                    ]
                )
                assert outcome.confirmed

        asyncio.run(publish())
        run: dict[str, Any] = self.until(f"/requests/{request.request_id}", lambda _: True)
        return str(run["run_id"])

    def job(self, workflow: str, name: str, state: str, **changes: Any) -> str:
        """The id of this job of a new run, once it is in `state`."""
        return self.wait_for_state(self.ask(workflow, **changes), name, state)

    def wait_for_state(self, run_id: str, name: str, state: str) -> str:
        def stands(run: dict[str, Any]) -> bool:
            return any(job["name"] == name and job["state"] == state for job in run["jobs"])

        run = self.until(f"/runs/{run_id}", stands)
        return str(next(job["job_id"] for job in run["jobs"] if job["name"] == name))

    def until(self, path: str, condition: Any) -> dict[str, Any]:
        """The answer of the API, once it is as expected."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            answer = httpx2.get(f"{self.process.url}/api/v1{path}", trust_env=False)
            if answer.is_success and condition(answer.json()):
                document: dict[str, Any] = answer.json()
                return document
            assert time.monotonic() < deadline, (path, answer.text, self.process.events)
            time.sleep(0.05)

    def solstice(self, *arguments: str) -> str:
        # In this process: starting one takes much longer than the answer, and there are dozens.
        environment = {"SOLSTICE_URL": self.process.url, "NO_COLOR": "1", "COLUMNS": "200"}
        done = CliRunner().invoke(app, arguments, env=environment)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def why(self, which: str) -> dict[str, Any]:
        """The JSON of `solstice why`; its output for people says the same."""
        answer: dict[str, Any] = json.loads(self.solstice("why", which, "--json"))
        printed = self.solstice("why", which)
        assert f"reason  {answer['why']['reason']}" in printed
        assert answer["why"]["detail"] in printed
        why: dict[str, Any] = answer["why"]
        return why


@pytest.fixture(params=["sqlite", "postgresql"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    shared_files = SharedFiles(directory=tmp_path)
    settings = {}
    if request.param == "postgresql":
        database: ScratchDatabase = request.getfixturevalue("postgresql_database")
        settings["DATABASE_URL"] = database.url
    with orchestrator(
        shared_files,
        EXECUTOR="scripted",
        CAPACITY_MAP="linux=6,illumos=1",
        REPOSITORY_CAPS="acme/capped=1",
        OWNER_CAPS="harbour=1",
        OWNER_STARTS_PER_HOUR="lamp=1",
        GIT_PROTOCOLS="file,http",
        # The longest backoff: full jitter begins at zero, so some jobs wait long and some do not.
        RETRY_BASE_SECONDS="300",
        WORKER_NAME="quay",
        **settings,
    ) as process:
        yield Deployment(shared_files, process, Repository(tmp_path / "repository"))


@pytest.mark.timeout(360)
def test_every_reason_that_a_job_can_meet(deployment: Deployment) -> None:
    first_run = deployment.ask("needs.kdl", repo_full_name="acme/app")
    first = deployment.wait_for_state(first_run, "first", "running")
    needs = deployment.why(deployment.wait_for_state(first_run, "second", "blocked"))
    assert needs["reason"] == "needs"
    assert [holder["job_id"] for holder in needs["holders"]] == [first]

    patient = deployment.job("busy.kdl", "patient", "waiting", repo_full_name="reef/tide")
    busy = deployment.why(patient)
    assert (busy["reason"], busy["ahead"]) == ("slots_busy", 0)
    assert [(each["job_id"], each["repository"]) for each in busy["holders"]] == [(first, "acme/app")]

    nowhere = deployment.why(deployment.job("nowhere.kdl", "lost", "waiting"))
    assert nowhere["reason"] == "no_worker_for_label"

    holder = deployment.ask("group.kdl")
    deployment.wait_for_state(holder, "deploy", "running")
    group = deployment.why(deployment.job("group.kdl", "deploy", "blocked"))
    assert group["reason"] == "concurrency_group"
    assert [each["run_id"] for each in group["holders"]] == [holder]

    capped_run = deployment.ask("capped.kdl", repo_full_name="acme/capped")
    one = deployment.wait_for_state(capped_run, "one", "running")
    capped = deployment.why(deployment.wait_for_state(capped_run, "two", "waiting"))
    assert capped["reason"] == "repository_cap"
    assert [each["job_id"] for each in capped["holders"]] == [one]

    owned_run = deployment.ask("capped.kdl", repo_full_name="harbour/app")
    first_of_owner = deployment.wait_for_state(owned_run, "one", "running")
    owned = deployment.why(deployment.job("capped.kdl", "one", "waiting", repo_full_name="harbour/docs"))
    assert owned["reason"] == "owner_cap"
    assert [each["job_id"] for each in owned["holders"]] == [first_of_owner]

    often = deployment.ask("capped.kdl", repo_full_name="lamp/app")
    deployment.wait_for_state(often, "one", "running")
    limited = deployment.until(
        f"/jobs/{deployment.wait_for_state(often, 'two', 'waiting')}/why", lambda shown: shown["why"]
    )["why"]
    assert (limited["reason"], limited["resource"]) == ("rate_limited", "owner")
    assert limited["until"] is not None

    assert unlucky(deployment)["reason"] == "backoff"

    deployment.solstice("workers", "pause", "quay")
    assert deployment.why(patient)["reason"] == "paused"
    assert deployment.why(deployment.ask("busy.kdl"))["reason"] == "paused"


def unlucky(deployment: Deployment) -> dict[str, Any]:
    """The explanation of a job in backoff, which may have been tried again meanwhile."""
    runs = [deployment.ask("broken.kdl") for _ in range(4)]
    while True:
        for run_id in runs:
            (job,) = deployment.until(f"/runs/{run_id}", lambda run: run["jobs"])["jobs"]
            answer = json.loads(deployment.solstice("why", job["job_id"], "--json"))
            if answer["state"] == "backoff":
                assert answer["why"]["until"] is not None
                why: dict[str, Any] = answer["why"]
                return why


@pytest.mark.timeout(240)
def test_a_run_whose_workflow_is_not_read_yet(deployment: Deployment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/acme/app.git"
        assert deployment.why(deployment.ask("busy.kdl", repo_url=url))["reason"] == "not_planned_yet"


@pytest.mark.timeout(240)
def test_a_newer_push_ends_the_run_that_is_under_way(deployment: Deployment) -> None:
    push = {"event": "push", "ref": "refs/heads/spring"}
    older = deployment.ask("busy.kdl", **push)
    deployment.wait_for_state(older, "patient", "running")
    newer = deployment.ask("busy.kdl", **push)
    deployment.wait_for_state(newer, "patient", "running")
    ended = deployment.until(f"/runs/{older}", lambda run: run["state"] == "cancelled")
    assert ended["detail"] == f"superseded by {newer}"
    assert [(job["state"], job["reason"]) for job in ended["jobs"]] == [("cancelled", "superseded")]


@pytest.mark.timeout(240)
def test_a_whole_run_is_answered_for_each_job_that_waits(deployment: Deployment) -> None:
    run_id = deployment.ask("needs.kdl")
    deployment.wait_for_state(run_id, "first", "running")
    other = deployment.ask("needs.kdl")
    deployment.wait_for_state(other, "first", "waiting")
    printed = deployment.solstice("why", other)
    assert "reason  slots_busy" in printed
    assert "reason  needs" in printed
    assert "it does not wait" in deployment.solstice(
        "why", deployment.wait_for_state(run_id, "first", "running")
    )


@pytest.mark.timeout(240)
def test_a_job_behind_its_needs_or_a_group_is_told_when_it_may_start(deployment: Deployment) -> None:
    learned = deployment.ask("learned.kdl")
    deployment.until(f"/runs/{learned}", lambda run: run["state"] == "succeeded")
    holder = deployment.ask("queued.kdl")
    deployment.wait_for_state(holder, "build", "running")
    behind_needs = deployment.wait_for_state(holder, "deploy", "blocked")
    behind_group = deployment.job("queued.kdl", "build", "blocked")
    for job, reason in ((behind_needs, "needs"), (behind_group, "concurrency_group")):
        why = deployment.why(job)
        assert why["reason"] == reason
        start = why["expected_start"]
        assert start["earliest"] < start["latest"], why
        assert "as an estimate" in deployment.solstice("why", job)
