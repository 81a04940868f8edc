"""`solstice enqueue` and the HTTP API ask a running `solstice up` for delayed runs."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx2
import pytest

from solstice_common.values.times import parse_timestamp
from tests.servers.solstice_up import Repository, SolsticeUp, repository, solstice_up

WORKFLOW = 'job "night" { step "say" run="echo it is time"; }'


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolsticeUp]:
    with solstice_up(tmp_path_factory.mktemp("up") / "state") as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    return repository(tmp_path / "lamp", {".solstice/workflow.kdl": WORKFLOW})


def run_of(
    up: SolsticeUp, request_id: str, stands: Callable[[dict[str, Any]], bool] = lambda _: True
) -> dict[str, Any]:
    """The run of a request, once it stands as wanted."""
    until = time.monotonic() + 60
    while True:
        answer = httpx2.get(f"{up.page}/api/v1/requests/{request_id}", trust_env=False)
        if answer.is_success and stands(answer.json()):
            run: dict[str, Any] = answer.json()
            return run
        assert time.monotonic() < until, answer.text
        time.sleep(0.05)


def enqueue_options(project: Repository) -> tuple[str, ...]:
    return ("--repo-url", str(project.folder), "--commit-sha", project.head)


def test_what_is_waited_for_starts_at_its_time_and_says_so(up: SolsticeUp, project: Repository) -> None:
    submitted_at = datetime.now(UTC)
    done = up.solstice("enqueue", *enqueue_options(project), "--delay", "3s", "--wait", "--json")
    run = json.loads(done.stdout)["run"]
    assert (run["state"], [job["state"] for job in run["jobs"]]) == ("succeeded", ["succeeded"])
    due = parse_timestamp(run["not_before"])
    assert due >= submitted_at + timedelta(seconds=3) - timedelta(milliseconds=1)
    assert parse_timestamp(run["started_at"]) >= due
    assert f"it starts at {run['not_before']}" in done.stderr


def test_until_then_every_command_knows_it_and_it_can_be_cancelled(
    up: SolsticeUp, project: Repository
) -> None:
    there = timezone(timedelta(hours=5, minutes=45))
    tomorrow = (datetime.now(there) + timedelta(days=1)).replace(microsecond=0)
    answer = up.json("enqueue", *enqueue_options(project), "--not-before", tomorrow.isoformat())
    run = run_of(up, answer["request_id"])
    assert (run["state"], parse_timestamp(run["not_before"])) == ("delayed", tomorrow)

    listed = up.json("runs", "--state", "delayed")["runs"]
    assert [each["run_id"] for each in listed] == [run["run_id"]]
    why = up.json("why", run["run_id"])["why"]
    assert (why["reason"], why["until"]) == ("not_before", run["not_before"])
    assert why["expected_start"] == {"earliest": run["not_before"], "latest": run["not_before"]}
    assert f"not before  {run['not_before']}" in up.solstice("show", run["run_id"]).stdout
    assert "starts later" in up.solstice("show", run["run_id"]).stdout or not run["jobs"]
    page = httpx2.get(f"{up.page}/runs/{run['run_id']}", trust_env=False).text
    assert "Delayed" in page
    assert "This run starts" in page

    again = up.json("rerun", run["run_id"])
    assert again["state"] != "delayed"
    assert run_of(up, again["request_id"], lambda each: each["state"] == "succeeded")["not_before"] is None

    up.solstice("cancel", run["run_id"])
    assert up.json("show", run["run_id"])["state"] == "cancelled"


def test_a_program_asks_by_http_and_one_key_is_one_run(up: SolsticeUp, project: Repository) -> None:
    def ask(key: str, **more: object) -> httpx2.Response:
        body = {"repo_url": project.folder.as_uri(), "commit_sha": project.head, **more}
        return httpx2.post(
            f"{up.webhooks.rpartition('/webhooks')[0]}/api/v1/jobs",
            json=body,
            headers={"Idempotency-Key": key},
            trust_env=False,
        )

    first = ask("tonight", delay_seconds=3600)
    assert first.status_code == 202, first.text
    time.sleep(1.1)
    repeated = ask("tonight", delay_seconds=3600)
    assert (repeated.status_code, repeated.json()) == (202, first.json())
    assert ask("tonight", delay_seconds=7200).status_code == 422
    run = run_of(up, first.json()["request_id"])
    assert run["state"] == "delayed"
    left = parse_timestamp(run["not_before"]) - datetime.now(UTC)
    assert timedelta(minutes=50) < left <= timedelta(hours=1)

    at = ask("at", not_before="2001-01-01T01:00:00+01:00")
    assert run_of(up, at.json()["request_id"], lambda each: each["state"] == "succeeded")
    both = ask("both", not_before="2001-01-01T00:00:00Z", delay_seconds=1)
    assert (both.status_code, both.json()["reason"]) == (400, "malformed")
    far = ask("far", not_before="2999-01-01T00:00:00Z")
    assert far.status_code == 400
    assert "366 days" in far.json()["error"]


def test_an_absurd_time_is_refused(up: SolsticeUp, project: Repository) -> None:
    for options, words in (
        (("--delay", "367d"), "more than 366 days"),
        (("--delay", "soon"), "15m"),
        (("--not-before", "22:00"), "RFC 3339"),
        (("--not-before", "2026-01-31T22:00:00Z", "--delay", "1h"), "one of them"),
    ):
        refused = up.solstice("enqueue", *enqueue_options(project), *options, check=2)
        assert words in refused.stderr
