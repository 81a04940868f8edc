"""`solstice simulate` as a person or a script calls it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from solstice_cli.main import app
from solstice_common.errors import ConfigurationError
from solstice_orchestrator.domain.jobs import Concurrency, GroupMode, RunSpec
from solstice_orchestrator.scheduling.quotas import owner_of
from solstice_orchestrator.simulation.trace import read_runs
from solstice_orchestrator.store import open_store
from tests.builders import job, job_request
from tests.servers.service_process import base_environment
from tests.stores import (
    CHECKOUT_ERRORED,
    FAILED,
    SUCCEEDED,
    WORKER,
    ManualClock,
    admitted,
    claimed,
    planned,
    planning_task,
)


def simulate(*words: str | Path) -> Result:
    """Run it in this process: starting one takes longer than the command itself."""
    return CliRunner().invoke(app, ["simulate", *map(str, words)])


def output_of(*words: str | Path) -> str:
    done = simulate(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def answer(*words: str | Path) -> Any:
    return json.loads(output_of(*words, "--json"))


def refused(*words: str | Path) -> BaseException | None:
    """The error that `program.run` prints in one line."""
    done = simulate(*words)
    assert done.stdout == ""
    return done.exception


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    out = tmp_path / "jobs.jsonl"
    given = ("--jobs", "3000", "--over", "24h", "--labels", "linux=4,illumos=1", "--repositories", "50")
    assert answer("generate", "--out", out, *given) == {"trace": str(out), "jobs": 3000}
    return out


def test_generated_repositories_belong_to_owners_in_turn(tmp_path: Path) -> None:
    out = tmp_path / "jobs.jsonl"
    given = ("--jobs", "500", "--over", "1h", "--repositories", "9", "--owners", "3")
    assert answer("generate", "--out", out, *given)["jobs"] == 500
    with out.open("rb") as file:
        repositories = {run[0].repository for run in read_runs(file, str(out))}
    assert {owner_of(repository) for repository in repositories} == {"owner-1", "owner-2", "owner-3"}
    assert "owner-2/repository-2" in repositories


def test_a_generated_trace_is_simulated_and_reported(trace: Path) -> None:
    reported = answer("--trace", trace, "--slots", "linux=4,illumos=1")
    assert (reported["jobs"], reported["never_started"], reported["superseded"]) == (3000, 0, 0)
    of_all = {each["label"]: each["waits"] for each in reported["waits"] if each["priority"] is None}
    assert set(of_all) == {"linux", "illumos"}
    for waits in of_all.values():
        assert waits["p50"] <= waits["p90"] <= waits["p99"] <= waits["max"]
    assert 0 < reported["fairness"]["jain"] <= 1
    assert all(0 < use["utilisation"] <= 1 for use in reported["labels"])
    for change in reported["one_more"]:
        assert change["before"] == of_all[change["label"]]
        assert change["after"]["mean"] < change["before"]["mean"]
        again = answer("--trace", trace, "--no-one-more", "--slots", _with(change["label"], change["slots"]))
        assert again["one_more"] == []
        (waits,) = [
            each["waits"]
            for each in again["waits"]
            if (each["label"], each["priority"]) == (change["label"], None)
        ]
        assert waits == change["after"]


def test_caps_and_limits_change_the_report(trace: Path) -> None:
    slots = ("--slots", "linux=4,illumos=1", "--no-one-more")
    free = answer("--trace", trace, *slots)["waits"]
    for tried in (
        ("--repository-caps", "*=1"),
        ("--owner-caps", "*=2"),
        ("--owner-starts-per-hour", "*=100"),
        ("--label-start-rates", "illumos=1/m"),
        ("--repository-start-rates", "*=1/m"),
        ("--max-concurrency", "2"),
        ("--max-wait-seconds", "1"),
    ):
        assert answer("--trace", trace, *slots, *tried)["waits"] != free


def test_in_a_pipe_values_are_whole_and_lines_say_what_they_are(trace: Path) -> None:
    lines = output_of("--trace", trace, "--slots", "linux=4,illumos=1").splitlines()
    kinds = {line.split("\t")[0] for line in lines if "\t" in line}
    assert kinds == {"waits", "labels", "one more"}
    assert [line for line in lines if line.startswith("fairness")]


def test_mistakes_are_reported_in_one_line(trace: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_bytes(trace.read_bytes() + b'{"at":1e9,"label":"linux"}\n')
    cases = [
        (("--trace", wrong, "--slots", "linux=4"), f"{wrong}, line 3001: "),
        (("--trace", tmp_path / "none.jsonl", "--slots", "linux=4"), "No such file"),
        (("--trace", trace, "--slots", "many"), "--slots: 'many' is not LABEL=SLOTS"),
        (("--trace", trace, "--slots", "linux=4", "--repository-caps", "few"), "--repository-caps: 'few'"),
        (("--trace", trace, "--slots", "linux=4", "--owner-caps", "few"), "--owner-caps: 'few'"),
        (
            ("--trace", trace, "--slots", "linux=4", "--owner-starts-per-hour", "*=9/h"),
            "--owner-starts-per-hour: '*=9/h'",
        ),
        (
            ("--trace", trace, "--slots", "linux=4", "--label-start-rates", "linux=9"),
            "--label-start-rates: 'linux=9'",
        ),
        (
            ("--trace", trace, "--slots", "linux=4", "--repository-start-rates", "fast"),
            "--repository-start-rates: 'fast'",
        ),
        (("--trace", trace), "solstice simulate --trace FILE --slots linux=8"),
        (("--slots", "linux=4", "generate", "--out", tmp_path / "x"), "behind the word"),
        (("--max-concurrency", "0", "generate", "--out", tmp_path / "x"), "behind the word"),
        (("generate", "--out", tmp_path / "no" / "x"), "--out: "),
        (("generate", "--out", tmp_path / "x", "--over", "a year"), "--over: 'a year' is no age"),
        (("record", "--out", tmp_path / "x", "--since", "ever"), "--since: 'ever' is no age"),
    ]
    for words, message in cases:
        error = refused(*words)
        assert isinstance(error, ConfigurationError)
        assert message in str(error)
    assert not (tmp_path / "x").exists()


@contextmanager
def process(*words: str | Path | int) -> Iterator["subprocess.Popen[str]"]:
    """The command at work, ended at the latest when this is left."""
    with subprocess.Popen(
        [sys.executable, "-m", "solstice_cli", "simulate", *map(str, words)],
        env=base_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as working:
        try:
            yield working
        finally:
            working.kill()


def interrupted(working: "subprocess.Popen[str]") -> None:
    working.send_signal(signal.SIGINT)
    reported, complaints = working.communicate(timeout=60)
    assert (working.returncode, reported) == (130, "")
    assert "Traceback" not in complaints


def test_an_interrupt_ends_a_play_without_a_word_of_python(trace: Path, tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    os.mkfifo(endless)
    # Opening it returns once the other process reads.
    with process("--trace", endless, "--slots", "linux=1") as working, endless.open("wb") as writing:
        writing.write(trace.read_bytes()[:1000])
        writing.flush()
        interrupted(working)


def test_an_interrupt_leaves_no_half_trace(tmp_path: Path) -> None:
    out = tmp_path / "jobs.jsonl"
    with process("generate", "--out", out, "--jobs", 10**8) as working:
        until = time.monotonic() + 60
        while not any(tmp_path.iterdir()):
            assert working.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        interrupted(working)
    assert list(tmp_path.iterdir()) == []


async def test_what_a_store_has_run_becomes_a_trace(
    store_url: str, tmp_path: Path, clock: ManualClock
) -> None:
    mode = Concurrency(group="deploy", mode=GroupMode.CANCEL)
    async with open_store(store_url, clock=clock) as store:
        specs = (job("true", name="build"), job("true", name="ship", needs=("build",), concurrency=mode))
        await planned(store, *specs)
        for seconds in (10.0, 5.0):
            (claim,) = await claimed(store)
            clock.forward(seconds)
            await store.finish(claim.key, SUCCEEDED)
        # Its second attempt counts, too; what needs it never runs.
        await planned(store, job("true", name="flaky"), job("true", name="never", needs=("flaky",)))
        for outcome in (CHECKOUT_ERRORED, FAILED):
            (claim,) = await claimed(store)
            clock.forward(100.0)
            await store.finish(claim.key, outcome)
            clock.forward(100.0)
        run_id = await admitted(store, job_request(repo_full_name="reef/tide"))
        task = await planning_task(store)
        assert task.run_id == run_id
        assert await store.planned(task, [job("true", runs_on="illumos")], RunSpec(concurrency=mode))
        (claim,) = await claimed(store, free={"illumos": 1})
        await store.finish(claim.key, SUCCEEDED)
        await planned(store, job("true", name="unfinished"))
        await claimed(store)
    out = tmp_path / "jobs.jsonl"
    record = ("record", "--out", out, "--database-url", store_url)
    wrote = await asyncio.to_thread(output_of, *record, "--since", "36500d")
    assert wrote == f"wrote 4 jobs to {out}\n"
    with out.open("rb") as file:
        (build, ship), (flaky,), (grouped,) = read_runs(file, str(out))
    assert (build.at, build.seconds, build.name, build.concurrency) == (0.0, 10.0, "build", None)
    assert (ship.at, ship.seconds, ship.needs) == (0.0, 5.0, ("build",))
    assert ship.concurrency is not None
    assert ship.concurrency.mode is GroupMode.CANCEL
    assert (flaky.at, flaky.seconds, flaky.needs) == (15.0, 200.0, ())
    assert (grouped.repository, grouped.label, grouped.at) == ("reef/tide", "illumos", 415.0)
    assert grouped.run_concurrency is not None
    assert grouped.run_concurrency.mode is GroupMode.CANCEL
    assert WORKER not in out.read_text("utf-8")
    reported = answer("--trace", out, "--slots", "linux=1,illumos=1")
    assert (reported["jobs"], reported["never_started"]) == (4, 0)
    assert (await asyncio.to_thread(answer, *record, "--since", "1m"))["jobs"] == 0


def test_a_store_that_is_not_there_leaves_no_trace(tmp_path: Path) -> None:
    out = tmp_path / "jobs.jsonl"
    error = refused("record", "--out", out, "--database-url", f"sqlite:///{tmp_path / 'none.db'}")
    assert isinstance(error, ConfigurationError)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=1_500_000_000.0)


def _with(label: str, slots: int) -> str:
    return ",".join(f"{each}={count}" for each, count in {"linux": 4, "illumos": 1, label: slots}.items())
