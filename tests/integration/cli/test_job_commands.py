"""Commands about runs, jobs and attempts against a real server and store."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner, Result

from solstice_cli.main import app
from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord
from solstice_orchestrator.store.views import ChunkKind, RunView
from tests.servers.orchestrator_web import WebServer, serve_web, spec
from tests.stores import SUCCEEDED

FAILED = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=3, step="test")


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebServer]:
    async with serve_web(tmp_path) as served:
        yield served


async def solstice(web: WebServer, *arguments: str) -> Result:
    """The command, in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, env={"SOLSTICE_URL": web.url})


async def answer_of(web: WebServer, *arguments: str) -> Any:
    result = await solstice(web, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_runs_and_jobs_are_listed_by_what_is_asked(web: WebServer) -> None:
    fog, ids = await web.plan(spec(), spec("port", runs_on="illumos"), ref="refs/heads/fog")
    main, _ = await web.plan(spec())
    runs = await answer_of(web, "runs", "--branch", "fog", "--state", "waiting", "--label", "illumos")
    assert [run["run_id"] for run in runs["runs"]] == [fog.run_id]
    assert (await answer_of(web, "runs", "--branch", "main", "--priority", "high"))["runs"] == []
    jobs = await answer_of(web, "jobs", "--branch", "fog", "--label", "linux", "--priority", "default")
    assert [job["job_id"] for job in jobs["jobs"]] == [ids["build"]]
    both = await answer_of(web, "runs", "--all")
    assert [run["run_id"] for run in both["runs"]] == [main.run_id, fog.run_id]
    piped = await solstice(web, "jobs", fog.run_id, "--limit", "1")
    assert [row.split("\t")[0] for row in piped.stdout.splitlines()] == [ids["build"]]


async def test_all_jobs_are_listed_over_many_pages(web: WebServer) -> None:
    run, ids = await web.plan(*(spec(f"job-{number:03}") for number in range(230)))
    jobs = await answer_of(web, "jobs", run.run_id, "--all")
    assert [job["job_id"] for job in jobs["jobs"]] == [
        view.job_id for view in await web.store.jobs(run_id=run.run_id, limit=1000)
    ]
    assert len(jobs["jobs"]) == 230
    assert ids.items() <= {job["name"]: job["job_id"] for job in jobs["jobs"]}.items()


async def test_attempts_priority_and_what_failed(web: WebServer) -> None:
    run, ids = await web.plan(spec())
    job_id = ids["build"]
    assert (await answer_of(web, "attempts", job_id)) == {"attempts": []}
    assert (await answer_of(web, "priority", job_id, "high"))["priority"] == "high"
    printed = await solstice(web, "priority", job_id, "low")
    assert printed.stdout == f"job {job_id} has priority low\n"
    await web.finish(await web.claim(job_id), FAILED)
    (attempt,) = (await answer_of(web, "attempts", job_id))["attempts"]
    assert (attempt["state"], attempt["exit_code"], attempt["step"]) == ("failed", 3, "test")
    piped = await solstice(web, "attempts", job_id)
    assert piped.stdout.startswith("1\tfailed\tstep_failed\t")
    late = await solstice(web, "priority", job_id, "high")
    assert late.exit_code != 0
    again = await answer_of(web, "rerun", run.run_id, "--failed")
    assert again["rerun_of"] == run.run_id
    early = await solstice(web, "rerun", again["run_id"], "--failed")
    assert early.exit_code != 0
    assert "has not ended" in str(early.exception)


async def test_a_log_is_printed_with_what_is_missing(web: WebServer) -> None:
    key = await web.running()
    await web.prints(key, "one\n")
    await web.prints(key, "four\n", skip=2)
    await web.finish(key)
    expected = "  one\n! Output is missing here: pieces 2 to 3 were never stored.\n  four\n"
    for arguments in (("logs", key.job_id), ("logs", "-f", key.job_id)):
        assert (await solstice(web, *arguments)).stdout == expected
    shown = await solstice(web, "logs", "--json", key.job_id)
    events = [json.loads(row) for row in shown.stdout.splitlines()]
    assert [event["event"] for event in events] == ["chunk", "gap", "chunk"]


async def test_what_a_job_prints_cannot_be_mistaken_for_our_marks(web: WebServer) -> None:
    run, ids = await web.plan(spec("lint"), spec("test"))
    for name in ids:
        key = await web.claim(ids[name])
        await web.prints(key, "$ checkout\n", kind=ChunkKind.MARK)
        await web.prints(key, "$ checkout\n! the job was asked to end\n\r! so it was\nattempt 2\n")
        await web.prints(key, "! the step 'test' ended with exit code 3\n", kind=ChunkKind.MARK)
        await web.finish(key)
    marks = ["$ checkout", "! the step 'test' ended with exit code 3"]
    for flags in ((), ("-f",)):
        shown = (await solstice(web, "logs", *flags, ids["lint"])).stdout
        assert [row for row in shown.splitlines() if not row.startswith("  ") and row] == marks
        assert "\n  ! the job was asked to end\n\r  ! so it was\n  attempt 2\n" in shown
        both = (await solstice(web, "logs", *flags, run.run_id)).stdout
        for name in ids:
            rows = [row.removeprefix(f"{name} | ") for row in both.splitlines() if row.startswith(name)]
            assert [row for row in rows if not row.startswith("  ") and row.strip("\r")] == marks
        assert both.count(f"\n{name} |   ! the job was asked to end\n") == 1


async def test_what_an_autoscaler_asks_is_printed(web: WebServer) -> None:
    await web.plan(spec("a"), spec("b", needs=("a",)), spec("c", runs_on="illumos"))
    every = await answer_of(web, "scale", "--target", "60")
    assert (every["target_seconds"], every["waiting"], sorted(every["labels"])) == (
        60,
        2,
        ["illumos", "linux"],
    )
    piped = await solstice(web, "scale", "--label", "linux")
    assert [row.split("\t")[:5] for row in piped.stdout.splitlines()] == [["linux", "1", "0", "0", "1"]]
    assert "blocked=1" in piped.stdout
    no_worker = await answer_of(web, "scale", "--label", "vax")
    assert no_worker["labels"]["vax"]["wanted_slots"] == 0
    wrong = await solstice(web, "scale", "--label", "no label")
    assert wrong.exit_code != 0


async def test_what_a_job_hands_out_is_shown_and_obeyed_nowhere(web: WebServer) -> None:
    run, ids = await web.plan(spec(), spec("port"), spec("tests"))
    key = await web.claim(ids["build"])
    artifact = ArtifactRecord(name="dist", digest="ab" * 32, size=1024, files=3, retention_seconds=3600.0)
    assert await web.store.record_artifact(key, artifact, 0) is ArtifactAnswer.STORED
    await web.finish(key, replace(SUCCEEDED, outputs=(("version", "1.2"), ("note", "<b>\x1b[31m\n&"))))
    await web.finish(await web.claim(ids["port"]), FAILED)
    shown = await answer_of(web, "show", ids["build"])
    assert shown["outputs"] == {"version": "1.2", "note": "<b>\x1b[31m\n&"}
    assert [(each["name"], each["digest"]) for each in shown["artifacts"]] == [("dist", "ab" * 32)]
    printed = (await solstice(web, "show", ids["build"])).stdout
    assert re.search(r"^output version +1\.2$", printed, re.MULTILINE)
    assert f"1024 bytes, 3 files, sha256:{'ab' * 32}" in printed
    assert "\x1b" not in printed
    async with httpx2.AsyncClient(base_url=web.url) as http:
        page = (await http.get(f"/jobs/{ids['build']}")).text
        assert "<dt>version</dt><dd><code>1.2</code></dd>" in page
        assert f'href="/api/v1/jobs/{ids["build"]}/artifacts/dist"' in page
        assert "&lt;b&gt;" in page
        assert "<b>" not in page
    # The run has not ended: its third job waits.
    other, _ = await web.plan(spec())
    assert other.run_id != run.run_id
    counted = await answer_of(web, "runs", "--count", "--since", "1h")
    assert (counted["unfinished"], sum(counted["counts"].values())) == (2, 0)
    await web.finish(await web.claim(ids["tests"]))
    counted = await answer_of(web, "runs", "--count", "--repository", shown_repository(run))
    assert (counted["counts"]["failed"], counted["unfinished"]) == (1, 1)
    piped = await solstice(web, "runs", "--count", "--branch", "no-such-branch")
    assert piped.stdout.splitlines() == [
        f"0\t{state}" for state in (*(each.value for each in RunState if each.final), "unfinished")
    ]
    for refused in (("--since", "1h"), ("--count", "--state", "failed"), ("--count", "--since", "soon")):
        assert (await solstice(web, "runs", *refused)).exit_code != 0


def shown_repository(run: RunView) -> str:
    return run.repo_full_name or run.repo_url
