"""Test reports in the API, on pages and in commands, from one server."""

import asyncio
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Final

import httpx2

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.reports.results import encode_results
from solstice_orchestrator.reports.values import CaseCounts, JobReport, TestCaseResult, TestState
from solstice_orchestrator.store.records.report_records import ReportRecord
from tests.servers.orchestrator_web import WebServer, serve_web, spec
from tests.servers.service_process import base_environment

REPOSITORY: Final = "harbour/lighthouse"
HOSTILE: Final = "<script>alert(1)</script>\x1b[2J\u202e"
GOOD = TestCaseResult(name="good", class_name="tests.test_a", seconds=2.5)
BAD = TestCaseResult(
    name=f"bad {HOSTILE}",
    class_name="tests.test_a",
    state=TestState.FAILED,
    message=f"no {HOSTILE}\nsecond line",
    file="tests/test_a.py",
    line=7,
)
FAILED = Outcome(
    state=JobState.FAILED,
    reason=Reason.STEP_FAILED,
    exit_code=1,
    step="units",
    detail="the step 'units' ended",
)


async def reported(web: WebServer, *tests: TestCaseResult, outcome: Outcome = FAILED) -> tuple[str, str]:
    """A run of one commit whose job has reported these tests."""
    run, ids = await web.plan(spec("test"), commit_sha="ab" * 20)
    key = await web.claim(ids["test"])
    await web.prints(key, "one\n", f"last {HOSTILE}\n")
    bad = tuple(each for each in tests if each.state is TestState.FAILED)
    report = JobReport(
        counts=CaseCounts(passed=len(tests) - len(bad), failed=len(bad), seconds=2.5),
        failed=bad,
        slowest=tests[:1],
        problems=(f"b.xml: {HOSTILE}",),
        results=encode_results(tests),
    )
    record = ReportRecord(report=report, commit_sha=run.commit_sha, trusted=True)
    assert await web.store.record_report(key.job_id, key.number, record)
    await web.finish(key, outcome)
    return run.run_id, key.job_id


async def solstice(web: WebServer, *words: str) -> "subprocess.CompletedProcess[str]":
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "solstice_cli", *words, "--solstice-url", web.url],
        capture_output=True,
        text=True,
        check=False,
        env=base_environment(),
    )


def on_terminal(web: WebServer, columns: int, *words: str) -> bytes:
    """What a command writes on a terminal of that width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**base_environment(), "TERM": "xterm", "COLUMNS": str(columns)}
    with subprocess.Popen(
        [sys.executable, "-m", "solstice_cli", *words, "--solstice-url", web.url],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
    ) as process:
        os.close(its)
        output = bytearray()
        while piece := _read(ours):
            output += piece
        process.wait()
    os.close(ours)
    return bytes(output)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def harmless(text: str) -> bool:
    return [each for each in ("\x1b[2J", "\u202e") if each in text] == []


async def test_reports_are_shown_everywhere_and_nothing_of_them_is_obeyed(tmp_path: Path) -> None:
    async with (
        serve_web(tmp_path) as web,
        httpx2.AsyncClient(base_url=web.url, timeout=60, trust_env=False) as http,
    ):
        run_id, job_id = await reported(web, GOOD, BAD)
        passed = TestCaseResult(name=BAD.name, class_name=BAD.class_name)
        await reported(web, GOOD, passed, outcome=Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED))

        of_run = (await http.get(f"/api/v1/runs/{run_id}/tests")).json()
        (report,) = of_run["reports"]
        assert (of_run["counts"]["total"], report["failed"][0]["line"], report["job"]) == (2, 7, "test")
        flaky = (await http.get("/api/v1/tests/flaky", params={"repository": REPOSITORY})).json()
        assert [(each["name"], each["failures"]) for each in flaky["tests"]] == [(BAD.full_name, 1)]
        named = {"repository": REPOSITORY, "name": "test_a::good"}
        history = (await http.get("/api/v1/tests/history", params=named)).json()
        assert history["name"] == GOOD.full_name
        assert [each["state"] for each in history["results"]] == ["passed", "passed"]
        assert (await http.get("/api/v1/tests/flaky")).status_code == 400
        assert (await http.get("/api/v1/runs/none/explain")).status_code == 404
        explained = await http.get(f"/api/v1/runs/{run_id}/explain")
        assert len(explained.content) <= 4096
        words = explained.json()["untrusted"]
        assert (words["step"], words["failed_tests"][0]["line"]) == ("units", 7)
        assert words["log"][0] == "one"

        for page in (f"/jobs/{job_id}", f"/runs/{run_id}"):
            text = (await http.get(page)).text
            assert "2 tests, 1 failed" in text
            # The log itself is shown as it is.
            above = text.partition('<section class="log-box"')[0]
            assert harmless(above)
            assert "<script>alert" not in text
        job_page = (await http.get(f"/jobs/{job_id}")).text
        assert "tests/test_a.py:7" in job_page
        assert "&lt;script&gt;" in job_page

        listed = await solstice(web, "tests", run_id)
        rows = [line.split("\t") for line in listed.stdout.splitlines() if line]
        assert rows[0][:4] == ["test", "2", "1", "1"]
        failed = (await solstice(web, "tests", run_id, "--failed")).stdout.split("\t")
        assert failed[1:3] == ["failed", "tests/test_a.py:7"]
        assert harmless("".join(failed) + listed.stderr)
        slowest = await solstice(web, "tests", job_id, "--slowest")
        assert slowest.stdout.split("\t")[:2] == [GOOD.full_name, "2.5"]
        of_repository = await solstice(web, "tests", "--flaky", run_id)
        assert of_repository.stdout.split("\t")[1:3] == ["1", "1"]
        one = await solstice(web, "tests", "history", "good", "--repository", REPOSITORY, "--json")
        assert len(json.loads(one.stdout)["results"]) == 2
        none = await solstice(web, "tests", "history", "nothing", "--repository", REPOSITORY)
        assert (none.returncode, "give the whole name" in none.stderr) == (0, True)
        assert (await solstice(web, "tests")).returncode == 2

        explanation = await solstice(web, "explain", job_id)
        assert "| one" in explanation.stdout
        assert harmless(explanation.stdout)
        as_json = await solstice(web, "explain", run_id, "--json")
        assert json.loads(as_json.stdout) == explained.json()
        assert len(as_json.stdout.encode()) <= 4097
        for shown in (("tests", run_id), ("tests", "--flaky", run_id), ("explain", run_id)):
            output = await asyncio.to_thread(on_terminal, web, 60, *shown)
            assert b"\x1b[2J" not in output
            assert b"\xe2\x80\xae" not in output
            assert "failed" in output.decode() or "FAILURES" in output.decode()


async def test_every_end_is_explained(tmp_path: Path) -> None:
    async with (
        serve_web(tmp_path) as web,
        httpx2.AsyncClient(base_url=web.url, timeout=60, trust_env=False) as http,
    ):
        runs = {}
        for state, reason in (
            (JobState.SUCCEEDED, Reason.COMPLETED),
            (JobState.FAILED, Reason.STEP_FAILED),
            (JobState.TIMED_OUT, Reason.JOB_TIMEOUT),
            (JobState.ERRORED, Reason.ARTIFACT_NOT_STORED),
        ):
            after = [spec("after", needs=["build"])] if state is JobState.FAILED else []
            key = await web.running(spec("build"), *after)
            await web.finish(key, Outcome(state=state, reason=reason, detail="why so"))
            job = await web.store.job(key.job_id)
            assert job is not None
            runs[state.value] = job.run_id
        cancelled, _ = await web.plan(spec("build"))
        await web.store.cancel_run(cancelled.run_id, "asked for by mira")
        waiting, _ = await web.plan(spec("build"))
        refused = await web.admit()
        (task,) = await web.store.claim_planning("worker-1", 10)
        await web.store.not_planned(task, Reason.INVALID_WORKFLOW, "line 3, column 5: 'stpe' is not known")
        unplanned = await web.admit()
        runs |= {"cancelled": cancelled.run_id, "waiting": waiting.run_id}
        for ended, run_id in (*runs.items(), ("errored", refused.run_id), ("planning", unplanned.run_id)):
            answer = await http.get(f"/api/v1/runs/{run_id}/explain")
            found = answer.json()
            assert (answer.status_code, len(answer.content) <= 4096) == (200, True)
            assert found["state"] == ended
            assert "Read the detail" not in found["what_to_do"]
            if ended == "waiting":
                assert found["why"]["reason"]
        skipped = next(
            job for job in await web.store.jobs(run_id=runs["failed"], limit=10) if job.name == "after"
        )
        found = (await http.get(f"/api/v1/jobs/{skipped.job_id}/explain")).json()
        assert (found["state"], found["reason"]) == ("skipped", "needs_failed")
        words = (await http.get(f"/api/v1/runs/{refused.run_id}/explain")).json()
        assert "'stpe' is not known" in words["untrusted"]["detail"]
