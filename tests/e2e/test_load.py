"""`solstice load` against a running `solstice up`."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers.solstice_up import SolsticeUp, clean_environment, solstice_up

SHORT_LEASE = ("--lease-seconds", "3", "--renew-seconds", "1")
EVERY_KIND = ("--mix", "noop=2,sleeping=1,failing=1,flaky=1", "--seed", "4")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolsticeUp]:
    with solstice_up(tmp_path_factory.mktemp("load") / "state") as running:
        yield running


def load(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "solstice_cli", "load", *words],
        env=clean_environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("by", ["queue", "webhook"])
def test_every_kind_ends_as_it_has_to_and_nothing_is_lost_or_repeated(up: SolsticeUp, by: str) -> None:
    done = load(up.home, "-n", "12", "--by", by, "--json", *EVERY_KIND)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["accepted"], report["ended"], report["good"]) == (12, 12, True)
    assert (report["lost"], report["duplicated"], report["wrong"], report["unfinished"]) == (0, 0, 0, 0)
    assert report["retried"] > 0
    assert set(report["states"]) == {"succeeded", "failed"}
    assert [stop["stop"] for stop in report["stops"]][-1] == "whole"


def test_a_rate_is_kept_and_the_report_is_for_people(up: SolsticeUp) -> None:
    began = time.monotonic()
    done = load(
        up.home, "-n", "6", "--rate", "4", "--burst", "2", "--mix", "noop=1", "--priorities", "high=1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began >= 1.0
    assert "accepted  6 of 6" in done.stdout
    assert "lost      0" in done.stdout


def test_what_does_not_end_in_time_is_unfinished_not_lost(up: SolsticeUp) -> None:
    done = load(up.home, "-n", "1", "--mix", "noop=1", "--runs-on", "nowhere", "--timeout", "4")
    assert done.returncode == 1
    assert "unfinished 1" in done.stdout
    assert "lost      0" in done.stdout


def test_webhooks_with_a_wrong_secret_are_not_accepted(up: SolsticeUp) -> None:
    done = load(up.home, "-n", "2", "--by", "webhook", "--secret", "wrong")
    assert done.returncode == 1
    assert "2 not accepted: answered 401" in done.stdout


def test_what_was_not_sent_in_time_is_counted(up: SolsticeUp) -> None:
    done = load(up.home, "-n", "20", "--rate", "1", "--timeout", "4", "--mix", "noop=1", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["good"], report["requests"]) == (1, False, 20)
    assert report["unsent"] >= 15
    assert (report["lost"], report["wrong"]) == (0, 0)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--by", "webhook", "--webhook-url", "nonsense"), 2, "is no URL"),
        (("--by", "webhook", "--source", "manual"), 2, "choose github, forgejo, gitea or gitlab"),
        (("--amqp-url", "amqp://127.0.0.1:1/", "--enqueue-connect-seconds", "1"), 3, "127.0.0.1:1"),
    ],
    ids=["no URL", "no forge", "no broker"],
)
def test_what_cannot_be_reached_is_named_without_a_traceback(
    up: SolsticeUp, words: tuple[str, ...], code: int, message: str
) -> None:
    done = load(up.home, "-n", "1", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_without_an_orchestrator_nothing_is_sent(tmp_path: Path) -> None:
    done = load(tmp_path, "-n", "1")
    assert done.returncode == 3
    assert "no orchestrator answers" in done.stderr


def test_a_repository_for_a_system_elsewhere_is_written_and_used(up: SolsticeUp, tmp_path: Path) -> None:
    folder = tmp_path / "load.git"
    made = load(up.home, "--write-repository", str(folder))
    assert (made.returncode, made.stderr) == (0, "")
    again = load(up.home, "--write-repository", str(folder))
    assert again.returncode == 2
    assert "exists already" in again.stderr
    done = load(up.home, "-n", "2", "--repo-url", folder.as_uri(), "--repositories", "1", "--mix", "noop=1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--by", "pigeon"), "choose queue or webhook"),
        (("--burst", "3"), "--burst needs --rate"),
        (("--by", "webhook", "--priorities", "high=1"), "a webhook says neither"),
        (("--mix", "noise=1"), "names: noop, sleeping, failing, flaky"),
        (("--repo-url", "https://127.0.0.1:1/none.git"), "git ls-remote"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = load(tmp_path, *words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_requests_survive_an_orchestrator_that_is_killed_meanwhile(tmp_path: Path) -> None:
    """The report counts the attempts of the killed one as rescued, and nothing as lost."""
    home = tmp_path / "state"
    with solstice_up(home, *SHORT_LEASE) as first:
        running = subprocess.Popen(
            [sys.executable, "-m", "solstice_cli", "load", "-n", "6", "--mix", "sleeping=1", "--json"],
            env=first.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        while not first.api("/jobs?state=running")["jobs"]:
            assert running.poll() is None
            time.sleep(0.05)
        first.process.kill()
        first.process.wait()
        first.process.returncode = 0  # it is dead as asked
    port = str(urlsplit(first.page).port)
    with solstice_up(home, *SHORT_LEASE, "--orchestrator-port", port):
        out, _ = running.communicate(timeout=90)
    report = json.loads(out)
    assert (report["lost"], report["duplicated"], report["ended"]) == (0, 0, 6)
    assert report["rescued"] > 0
