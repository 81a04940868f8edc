"""The `solstice` command as people use it: `up` in one terminal, others in another."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.solstice_up import Repository, SolsticeUp, clean_environment, repository, solstice_up

FORGES = ("forgejo", "gitea", "github", "gitlab")
WORKFLOW = """
job "lint" {
    step "say" run="echo linted $SOLSTICE_COMMIT_SHA"
}
job "test" {
    needs "lint"
    step "say" run="echo tested; echo done"
}
"""
FAILING = 'job "test" { step "fail" run="echo about to fail; exit 7"; }'
LONG = 'job "long" { step "wait" run="echo started; sleep 300"; }'
JOB_FIELDS = {"job_id", "run_id", "name", "state", "reason", "attempt", "runs_on", "needs"}
RUN_FIELDS = {"run_id", "request_id", "state", "repo_url", "commit_sha", "created_at"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolsticeUp]:
    with solstice_up(tmp_path_factory.mktemp("up") / "state") as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Repository:
    """A repository whose newest commit builds."""
    return repository(tmp_path / "anvil", {".solstice/workflow.kdl": WORKFLOW})


@pytest.fixture(scope="module")
def good(up: SolsticeUp, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that succeeded, with its jobs `lint` and `test`."""
    return built(
        up, repository(tmp_path_factory.mktemp("good") / "anvil", {".solstice/workflow.kdl": WORKFLOW})
    )


@pytest.fixture(scope="module")
def bad(up: SolsticeUp, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run whose job `test` failed with exit code 7."""
    folder = tmp_path_factory.mktemp("bad") / "anvil"
    return built(up, repository(folder, {".solstice/workflow.kdl": FAILING}), check=1)


def enqueue(up: SolsticeUp, project: Repository, *arguments: str, check: int | None = 0) -> Any:
    return up.solstice(
        "enqueue", "--repo-url", project.folder, "--commit-sha", project.head, *arguments, check=check
    )


def built(up: SolsticeUp, project: Repository, check: int = 0) -> dict[str, Any]:
    """The run of the newest commit, when it has ended."""
    run: dict[str, Any] = json.loads(enqueue(up, project, "--wait", "--json", check=check).stdout)["run"]
    return run


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    """Poll until the condition holds: another process makes it true."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def run_of(up: SolsticeUp, request_id: str, *states: str) -> dict[str, Any]:
    """The run of a request, once there is one in one of these states."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        runs = up.api("/runs?limit=50")["runs"]
        found[:] = [run for run in runs if run["request_id"] == request_id]
        return bool(found) and (not states or found[0]["state"] in states)

    wait_for(is_there)
    return found[0]


class TestEnqueue:
    def test_waiting_ends_with_the_run_s_success(self, up: SolsticeUp, project: Repository) -> None:
        done = enqueue(up, project, "--wait")
        assert re.fullmatch(r"run [0-9a-f-]{36} succeeded\n", done.stdout)

    def test_waiting_ends_with_the_run_s_failure(self, up: SolsticeUp, project: Repository) -> None:
        project.commit({".solstice/workflow.kdl": FAILING})
        done = enqueue(up, project, "--wait", check=1)
        assert done.stdout.endswith(" failed\n")
        assert "test: failed (exit code 7)" in done.stderr

    def test_following_shows_the_logs_by_job(self, up: SolsticeUp, project: Repository) -> None:
        lines = enqueue(up, project, "--follow").stdout.splitlines()
        assert f"lint |   linted {project.head}" in lines
        assert lines.index("test |   tested") + 1 == lines.index("test |   done")

    def test_following_says_once_what_a_job_waits_for(self, up: SolsticeUp, project: Repository) -> None:
        project.commit({".solstice/workflow.kdl": 'job "far" runs-on="nowhere" { step run="true" }\n'})
        waiting = enqueue(up, project, "--follow", "--timeout", "7", check=3)
        (waiting_line,) = [line for line in waiting.stderr.splitlines() if line.startswith("far waits: ")]
        (run_id,) = re.findall(r"^run (\S+)$", waiting.stderr, re.MULTILINE)
        (job,) = up.api(f"/runs/{run_id}")["jobs"]
        why = up.api("/jobs/{job_id}/why".format(**job))["why"]
        assert waiting_line == f"far waits: {why['detail']}"

        command = [sys.executable, "-m", "solstice_cli", "logs", "--follow", run_id]
        with subprocess.Popen(command, env=up.environment, stderr=subprocess.PIPE, text=True) as following:
            assert following.stderr is not None
            assert waiting_line in (line.rstrip("\n") for line in following.stderr)
            up.solstice("cancel", run_id)
            assert following.wait(60) == 1

    def test_json_holds_the_run_and_its_jobs(self, up: SolsticeUp, project: Repository) -> None:
        answer = json.loads(enqueue(up, project, "--wait", "--json").stdout)
        assert answer["published"] == "confirmed"
        assert answer["run"]["request_id"] == answer["request_id"]
        assert [(job["name"], job["state"]) for job in answer["run"]["jobs"]] == [
            ("lint", "succeeded"),
            ("test", "succeeded"),
        ]

    def test_same_key_is_one_run(self, up: SolsticeUp, project: Repository) -> None:
        keyed = ("--json", "--idempotency-key", "once")
        first = json.loads(enqueue(up, project, *keyed).stdout)
        second = json.loads(enqueue(up, project, "--wait", *keyed).stdout)
        assert first["request_id"] == second["request_id"]
        assert run_of(up, first["request_id"])["run_id"] == second["run"]["run_id"]

    def test_one_job_can_be_picked(self, up: SolsticeUp, project: Repository) -> None:
        answer = json.loads(enqueue(up, project, "--wait", "--json", "--workflow-job-id", "lint").stdout)
        assert [job["name"] for job in answer["run"]["jobs"]] == ["lint"]

    def test_a_wrong_workflow_is_reported_with_its_place(self, up: SolsticeUp, project: Repository) -> None:
        project.commit({".solstice/workflow.kdl": 'job "test" {\n    stop "x"\n}\n'})
        done = enqueue(up, project, "--wait", check=1)
        assert "errored" in done.stdout
        assert (
            "errored: .solstice/workflow.kdl: line 2, column 5: 'stop' is not known in a job" in done.stdout
        )

    def test_interrupting_leaves_the_run_alone(self, up: SolsticeUp, project: Repository) -> None:
        project.commit({".solstice/workflow.kdl": LONG})
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "solstice_cli", "enqueue", "--follow"),
                *("--repo-url", str(project.folder), "--commit-sha", project.head),
            ],
            env=up.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "  started\n":
                assert line, "it ended before its job began"
            process.send_signal(signal.SIGINT)
            _, reported = process.communicate(timeout=30)
        assert process.returncode == 130
        (run_id,) = re.findall(r"solstice show ([0-9a-f-]{36})", reported)
        assert up.json("show", run_id)["state"] == "running"
        up.solstice("cancel", run_id)

    def test_waiting_can_be_limited(self, up: SolsticeUp, project: Repository) -> None:
        project.commit({".solstice/workflow.kdl": LONG})
        done = enqueue(up, project, "--wait", "--timeout", "1", check=3)
        # A busy machine may not have made a run of the request by then.
        waiting = re.search(
            r"not ended after 1 s\. (It goes on: 'solstice show (?P<run>[0-9a-f-]{36})' shows it"
            r"|No orchestrator has taken the request (?P<request>[0-9a-f-]{36}) yet)",
            done.stderr,
        )
        assert waiting, done.stderr
        run_id = waiting["run"] or run_of(up, waiting["request"])["run_id"]
        assert up.json("show", run_id)["state"] in {"queued", "running"}
        up.solstice("cancel", run_id)


class TestReading:
    def test_runs_are_listed_newest_first(
        self, up: SolsticeUp, good: dict[str, Any], bad: dict[str, Any]
    ) -> None:
        runs = up.json("runs", "--limit", "200")["runs"]
        assert [run["created_at"] for run in runs] == sorted(
            (run["created_at"] for run in runs), reverse=True
        )
        assert {good["run_id"], bad["run_id"]} <= {run["run_id"] for run in runs}
        assert runs[0].keys() >= RUN_FIELDS

    def test_runs_can_be_chosen_by_state(
        self, up: SolsticeUp, good: dict[str, Any], bad: dict[str, Any]
    ) -> None:
        runs = up.json("runs", "--state", "failed", "--all")["runs"]
        assert bad["run_id"] in {run["run_id"] for run in runs}
        assert {run["state"] for run in runs} == {"failed"}

    def test_a_pipe_gets_one_run_per_line(self, up: SolsticeUp, good: dict[str, Any]) -> None:
        rows = [line.split("\t") for line in up.solstice("runs", "--all").stdout.splitlines()]
        assert [good["run_id"], "succeeded"] in [row[:2] for row in rows]

    def test_jobs_of_a_run_are_in_workflow_order(self, up: SolsticeUp, good: dict[str, Any]) -> None:
        jobs = up.json("jobs", good["run_id"])["jobs"]
        assert [job["name"] for job in jobs] == ["lint", "test"]
        assert jobs[1]["needs"] == ["lint"]
        assert jobs[0].keys() >= JOB_FIELDS

    def test_a_part_of_an_id_is_enough(self, up: SolsticeUp, good: dict[str, Any]) -> None:
        assert up.json("show", good["run_id"][-8:])["run_id"] == good["run_id"]
        assert up.json("show", good["jobs"][1]["job_id"][-8:])["name"] == "test"

    def test_a_run_is_shown_with_its_page(self, up: SolsticeUp, good: dict[str, Any]) -> None:
        shown = up.solstice("show", good["run_id"]).stdout
        assert f"{up.page}/runs/{good['run_id']}" in shown
        assert good["commit_sha"] in shown

    def test_a_job_is_shown_with_its_attempts(self, up: SolsticeUp, bad: dict[str, Any]) -> None:
        job_id = bad["jobs"][0]["job_id"]
        assert "attempt 1  failed (step_failed)" in up.solstice("show", job_id).stdout
        assert [attempt["exit_code"] for attempt in up.json("show", job_id)["attempts"]] == [7]

    def test_unknown_id_is_a_mistake_of_the_command(self, up: SolsticeUp) -> None:
        done = up.solstice("show", "dead0000-0000-7000-8000-000000000001", check=2)
        assert done.stderr.startswith("error: there is no run or job dead0000")


class TestLogs:
    def test_a_job_s_log_is_printed_indented_behind_our_marks(
        self, up: SolsticeUp, good: dict[str, Any]
    ) -> None:
        assert "\n  tested\n  done\n" in up.solstice("logs", good["jobs"][1]["job_id"]).stdout

    def test_a_run_s_logs_carry_the_job_s_name(self, up: SolsticeUp, good: dict[str, Any]) -> None:
        lines = up.solstice("logs", good["run_id"]).stdout.splitlines()
        assert "test |   done" in lines
        assert "test | $ checkout" in lines

    def test_json_is_one_object_per_chunk(self, up: SolsticeUp, good: dict[str, Any]) -> None:
        lines = up.solstice("logs", good["jobs"][1]["job_id"], "--json").stdout.splitlines()
        chunks = [json.loads(line) for line in lines]
        assert [chunk["sequence"] for chunk in chunks] == list(range(1, len(chunks) + 1))
        assert "tested\ndone\n" in "".join(chunk["text"] for chunk in chunks)

    def test_following_continues_to_the_end_and_prints_it(self, up: SolsticeUp, bad: dict[str, Any]) -> None:
        done = up.solstice("logs", "-f", bad["jobs"][0]["job_id"], check=1)
        assert "\n  about to fail\n! " in done.stdout
        assert done.stderr == "test failed\n"


class TestSteering:
    def test_cancelling_ends_what_runs(self, up: SolsticeUp, project: Repository) -> None:
        project.commit({".solstice/workflow.kdl": LONG})
        request_id = json.loads(enqueue(up, project, "--json").stdout)["request_id"]
        run = run_of(up, request_id, "running")
        (job,) = up.api(f"/jobs?run_id={run['run_id']}")["jobs"]
        assert up.solstice("cancel", job["job_id"]).stdout.endswith("is being stopped\n")
        run_of(up, request_id, "cancelled")
        assert "had ended already: cancelled" in up.solstice("cancel", run["run_id"]).stdout

    def test_a_rerun_is_a_new_run_of_the_same_commit(self, up: SolsticeUp, good: dict[str, Any]) -> None:
        again = up.json("rerun", good["run_id"])
        assert again["rerun_of"] == good["run_id"]
        assert again["commit_sha"] == good["commit_sha"]
        assert up.solstice("logs", "-f", str(again["run_id"])).stderr.endswith(" succeeded\n")


class TestWebhookSend:
    @pytest.mark.parametrize("source", FORGES)
    @pytest.mark.parametrize("event", ["push", "pull_request"])
    def test_delivery_becomes_a_run(
        self, up: SolsticeUp, project: Repository, source: str, event: str
    ) -> None:
        answer: Any = up.json(
            *("webhook", "send", "--source", source, "--event", event, "--repo-url", project.folder),
            up.webhooks.removesuffix("/webhooks"),
        )
        assert (answer["status"], answer["answer"]["decision"]) == (202, "accepted")
        (request_id,) = answer["answer"]["request_ids"]
        run = run_of(up, request_id)
        assert (run["source"], run["commit_sha"]) == (source, project.head)

    def test_wrong_secret_is_refused(self, up: SolsticeUp, project: Repository) -> None:
        done = up.solstice(
            *("webhook", "send", "--secret", "wrong", "--repo-url", project.folder),
            up.webhooks.removesuffix("/webhooks"),
            check=1,
        )
        assert done.stdout.startswith("401 ")

    def test_same_push_twice_is_one_request(self, up: SolsticeUp, project: Repository) -> None:
        answers: list[Any] = [
            up.json("webhook", "send", "--repo-url", project.folder, f"{up.webhooks}/forgejo")["answer"]
            for _ in range(2)
        ]
        assert [answer["decision"] for answer in answers] == ["accepted", "duplicate"]
        assert answers[0]["request_ids"] == answers[1]["request_ids"]


class TestUp:
    def test_a_second_one_in_the_same_place_is_refused(self, up: SolsticeUp) -> None:
        done = up.solstice("up", "--forge-port", "0", "--orchestrator-port", "0", check=2)
        assert f"running already with the state directory {up.home} (process {up.process.pid})" in done.stderr

    def test_a_taken_port_is_named(self, up: SolsticeUp, tmp_path: Path) -> None:
        port = up.webhooks.split(":")[-1].partition("/")[0]
        done = subprocess.run(
            [sys.executable, "-m", "solstice_cli", "up", "--forge-port", port, "--orchestrator-port", "0"],
            env=clean_environment(tmp_path / "other"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 2
        assert f"FORGE_PORT: cannot listen on 127.0.0.1:{port}" in done.stderr

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
    def test_a_signal_ends_it_in_order(self, tmp_path: Path, number: signal.Signals) -> None:
        with solstice_up(tmp_path / "state") as running:
            running.process.send_signal(number)
            assert running.process.wait(30) == 0

    def test_words_say_what_to_type_next(self, tmp_path: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "solstice_cli", "up", "--forge-port", "0", "--orchestrator-port", "0"],
            env=clean_environment(tmp_path / "state"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with process:
            assert process.stdout is not None
            words = ""
            while "solstice runs" not in words:
                line = process.stdout.readline()
                assert line, words
                words += line
            process.terminate()
            assert process.wait(30) == 0
        assert "Solstice CI is up" in words
        assert "/webhooks/forgejo" in words
        assert "webhook-secrets.json" in words
        assert "solstice enqueue --follow" in words


class TestWorkers:
    def test_the_worker_is_listed_with_its_slots(self, up: SolsticeUp) -> None:
        (worker,) = json.loads(up.solstice("workers", "--json").stdout)["workers"]
        assert (worker["state"], worker["presence"]) == ("active", "alive")
        line = up.solstice("workers", "list").stdout.rstrip().split("\t")
        assert line[:2] == [worker["worker_id"], "active"]
        assert worker["worker_id"] in up.solstice("workers", "show", worker["name"]).stdout

    def test_an_order_holds_until_the_next(self, up: SolsticeUp, project: Repository) -> None:
        (worker,) = json.loads(up.solstice("workers", "--json").stdout)["workers"]
        paused = up.solstice("workers", "pause", worker["name"]).stdout
        assert paused == f"worker {worker['worker_id']} paused\n"
        until = up.solstice("workers", "quarantine", worker["name"], "--seconds", "60", "--json").stdout
        assert json.loads(until)["quarantined_until"]
        request_id = json.loads(enqueue(up, project, "--json").stdout)["request_id"]
        assert up.solstice("workers", "resume", worker["worker_id"]).stdout.endswith(" active\n")
        run_of(up, request_id, "succeeded")

    def test_options_before_the_word_are_not_lost_in_silence(self, up: SolsticeUp) -> None:
        done = up.solstice("workers", "--json", "list", check=2)
        assert "behind the word" in done.stderr

    def test_a_drain_of_the_only_worker_ends_the_whole_process_well(self, tmp_path: Path) -> None:
        with solstice_up(tmp_path / "state") as running:
            (worker,) = json.loads(running.solstice("workers", "--json").stdout)["workers"]
            draining = running.solstice("workers", "drain", worker["worker_id"]).stdout
            assert draining == f"worker {worker['worker_id']} draining\n"
            assert running.process.wait(60) == 0

    def test_an_unknown_worker_is_named(self, up: SolsticeUp) -> None:
        assert "no worker 'nobody'" in up.solstice("workers", "pause", "nobody", check=2).stderr


class TestSchedules:
    def test_what_a_branch_holds_is_built_when_it_is_due(self, up: SolsticeUp, project: Repository) -> None:
        where = ("--repo-url", project.folder, "--branch", "main", "--cron", "@daily")
        added = up.solstice("schedules", "add", "nightly", *where, "--timezone", "Asia/Kathmandu").stdout
        assert added.startswith("schedule nightly added: next tick 2")
        up.solstice("schedules", "fire", "nightly")

        def last() -> dict[str, Any]:
            shown: dict[str, Any] = json.loads(up.solstice("schedules", "show", "nightly", "--json").stdout)
            return shown["last"] or {}

        wait_for(lambda: last().get("run_state") == "succeeded")
        assert (last()["commit_sha"], last()["reason"]) == (project.head, "by_hand")
        run = up.api(f"/runs/{last()['run_id']}")
        assert (run["event"], run["ref"], run["state"]) == ("schedule", "refs/heads/main", "succeeded")
        ticks = up.solstice("schedules", "next", "nightly").stdout.splitlines()
        assert len(ticks) == 10
        assert all("T00:00:00+05:45\t" in tick and "T18:15:00.000Z" in tick for tick in ticks)

    def test_a_branch_that_is_not_there_is_reported(self, up: SolsticeUp, project: Repository) -> None:
        where = ("--repo-url", project.folder, "--branch", "gone", "--cron", "@daily")
        up.solstice("schedules", "add", "lost", *where)
        up.solstice("schedules", "fire", "lost")

        def reported() -> str:
            return up.solstice("schedules", "show", "lost").stdout

        wait_for(lambda: "branch_gone" in reported())
        assert "has no refs/heads/gone" in reported()
        up.solstice("schedules", "remove", "lost")
        assert "no schedule 'lost'" in up.solstice("schedules", "show", "lost", check=2).stderr


class TestWithoutAnOrchestrator:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["runs"],
            ["jobs"],
            ["show", "abcd"],
            ["logs", "abcd"],
            ["cancel", "abcd"],
            ["rerun", "abcd"],
            ["workers"],
            ["schedules"],
        ],
        ids=lambda arguments: arguments[0],
    )
    def test_the_error_says_what_to_start(self, tmp_path: Path, arguments: list[str]) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "solstice_cli", *arguments],
            env={**clean_environment(tmp_path), "SOLSTICE_URL": "http://127.0.0.1:1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 3
        assert done.stderr.startswith("error: no orchestrator answers at http://127.0.0.1:1: start one with")
        assert done.stderr.count("\n") == 1


RETRIED = """
job "test" retries=1 {
    step "try" run="echo here is try $SOLSTICE_ATTEMPT; test $SOLSTICE_ATTEMPT = 2"
}
"""


def test_following_a_job_that_is_tried_again_shows_both_attempts(tmp_path: Path) -> None:
    project = repository(tmp_path / "anvil", {".solstice/workflow.kdl": RETRIED})
    with solstice_up(tmp_path / "state", "--retry-base-seconds", "0.1") as running:
        done = enqueue(running, project, "--follow", "--json")
        run = json.loads(done.stdout)["run"]
        (job,) = run["jobs"]
        assert job["attempt"] == 2
        followed = running.solstice("logs", "--follow", job["job_id"]).stdout
    for shown in (done.stderr, followed):
        lines = shown.splitlines()
        first, heading, second = (
            lines.index(line) for line in ("  here is try 1", "attempt 2", "  here is try 2")
        )
        assert first < heading < second, shown


ADD = ("schedules", "add", "nightly", "--repo-url", "https://forge.example/a/b", "--branch", "main", "--cron")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*ADD, "61 * * * *"), "error: cron: the 1st field, minute, is '61'"),
        ((*ADD, "@daily", "--timezone", "Europe/Nowhere"), "there is no time zone 'Europe/Nowhere'"),
        (("schedules", "add", "bad name!", *ADD[3:], "@daily"), "error: name: must have the form"),
        (("token", "create", "bad name!", "--scope", "read"), "the name 'bad name!': must be 1 to 63"),
        (("token", "revoke", "nobody"), "there is no token 'nobody'"),
        (("runs", "--state", "nonsense"), "nonsense"),
        (("jobs", "--state", "nonsense"), "nonsense"),
    ],
    ids=["cron", "zone", "schedule", "new token", "token", "run state", "job state"],
)
def test_a_wrong_value_ends_with_2_though_a_server_answers(
    up: SolsticeUp, words: tuple[str, ...], sentence: str
) -> None:
    done = up.solstice(*words, check=2)
    assert sentence in done.stderr
    assert done.stdout == ""
    assert "should" not in done.stderr
