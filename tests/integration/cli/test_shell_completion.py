"""Completion in real shells on a terminal, beside a running `solstice up`.

Each key starts a program. Once per shell it is one of this Python, and then a fork of a process that has imported it.
"""

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from solstice_common.broker import open_broker
from solstice_common.messages.states import RunState
from tests.dead_letter_replays import fill, refused
from tests.servers.program_folder import program_folder
from tests.servers.shells import ANSWER_SECONDS, CLEAR, SHELLS, Terminal, terminal
from tests.servers.solstice_up import SolsticeUp, clean_environment, repository, solstice_up

PROGRAMS = ("solstice", "forge-integration", "orchestrator")
WORKFLOW = 'job "build" { step "x" run="true" }\njob "test" { step "x" run="true" }\n'


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolsticeUp]:
    with solstice_up(tmp_path_factory.mktemp("up") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def run(up: SolsticeUp, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that has ended, with its jobs."""
    made = repository(tmp_path_factory.mktemp("anvil") / "anvil", {".solstice/workflow.kdl": WORKFLOW})
    up.solstice("enqueue", "--repo-url", made.folder, "--wait")
    (ended,) = up.json("runs")["runs"]
    return up.json("show", ended["run_id"])


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def home(shell: str, up: SolsticeUp, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the shell was told, by its person, to complete the programs."""
    folder = tmp_path_factory.mktemp("home")
    with terminal(shell, folder, up.environment) as opened:
        for program in PROGRAMS:
            assert f"completion of {program} for {shell} is in " in opened.run(
                f"{program} --install-completion"
            )
    return folder


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """Our programs, which start in a tenth of the time."""
    with program_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def opened(shell: str, home: Path, up: SolsticeUp, programs: Path) -> Iterator[Terminal]:
    with terminal(shell, home, up.environment, programs=programs) as each:
        yield each


def test_programs_of_this_python_complete_their_commands(shell: str, home: Path, up: SolsticeUp) -> None:
    with terminal(shell, home, up.environment) as opened:
        assert opened.completed("solstice sho") == "solstice show "
        assert opened.completed("forge-integration deliv") == "forge-integration deliveries "
        assert opened.completed("orchestrator op") == "orchestrator openapi "


def test_commands_are_completed_each_time(opened: Terminal) -> None:
    for _ in range(3):
        assert opened.completed("solstice sho") == "solstice show "
    assert opened.completed("solstice sched") == "solstice schedules "
    assert opened.completed("solstice schedules rem") == "solstice schedules remove "
    assert opened.completed("forge-integration deliv") == "forge-integration deliveries "
    assert opened.completed("orchestrator op") == "orchestrator openapi "


def test_flags_are_offered_without_the_words_that_describe_them(opened: Terminal) -> None:
    for program in ("solstice up", "forge-integration serve", "orchestrator run"):
        offered = opened.candidates(f"{program} --")
        assert {"--log-level", "--log-format", "--help"} <= set(offered)
        assert [each for each in offered if not each.startswith("--")] == []
    assert opened.completed("solstice runs --st") == "solstice runs --state "


def test_values_of_enumerations_are_offered(opened: Terminal) -> None:
    assert set(opened.candidates("solstice runs --state ")) == {state.value for state in RunState}
    assert opened.completed("solstice runs --state=fa") == "solstice runs --state=failed "
    assert opened.candidates("solstice priority 3fa9 ") == ["critical", "high", "default", "low"]
    assert opened.candidates("orchestrator run --log-level ") == ["debug", "info", "warning", "error"]
    assert opened.candidates("forge-integration serve --amqp-queue-type ") == ["quorum", "classic"]
    assert opened.candidates("solstice dlq list --queue ") == ["requests", "cancels", "statuses"]


def offered(found: Callable[[], object], expected: object) -> None:
    """Try again: completion waits but briefly, and a machine may be busy."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while (now := found()) != expected and time.monotonic() < deadline:
        continue
    assert now == expected


def test_ids_of_runs_and_jobs_are_offered_as_lists_show_them(opened: Terminal, run: dict[str, Any]) -> None:
    of_run, *of_jobs = run["run_id"], *(job["job_id"] for job in run["jobs"])
    ends = {each[-8:] for each in of_jobs}
    offered(lambda: set(opened.candidates("solstice show ")), {of_run[-8:], *ends})
    offered(lambda: set(opened.candidates("solstice attempts ")), ends)
    offered(lambda: opened.candidates("solstice approve "), [of_run[-8:]])
    offered(lambda: opened.completed(f"solstice logs -f {of_run[-8:-1]}"), f"solstice logs -f {of_run[-8:]} ")
    offered(lambda: opened.completed(f"solstice show {of_jobs[0][:-1]}"), f"solstice show {of_jobs[0]} ")


def test_what_has_ended_is_not_offered_to_be_cancelled(opened: Terminal, run: dict[str, Any]) -> None:
    offered(lambda: opened.candidates("solstice approve "), [run["run_id"][-8:]])
    assert opened.candidates("solstice cancel ") == []


def test_lists_say_what_an_id_is(opened: Terminal, run: dict[str, Any]) -> None:
    offered(lambda: opened.candidates("solstice approve "), [run["run_id"][-8:]])
    opened.press("solstice rerun \t\t")
    opened.until(rf"{run['run_id'][-8:]}\W.*run of \S+, succeeded, ")
    opened.press(CLEAR)
    opened.run("true")


def test_names_of_workers_repositories_and_labels_are_offered(
    opened: Terminal, up: SolsticeUp, run: dict[str, Any]
) -> None:
    (worker,) = up.json("workers", "list")["workers"]
    name, line = run["repo_full_name"], "solstice jobs --repository "
    offered(lambda: opened.candidates("solstice workers show "), [worker["name"]])
    offered(lambda: opened.completed(line + name[:3]), f"{line}{name} ")
    offered(lambda: opened.completed("solstice jobs --branch ma"), "solstice jobs --branch main ")
    offered(lambda: opened.candidates("solstice scale --label "), [*worker["slots"]])


@pytest.fixture(scope="module")
def dead_letter(up: SolsticeUp) -> str:
    """The id of one."""

    async def published() -> None:
        async with open_broker(f"sqlite:///{up.home / 'broker.sqlite'}", name="test") as broker:
            await fill(broker, refused(1))

    asyncio.run(published())
    (found,) = up.json("dlq", "list")["dead_letters"]
    return str(found["id"])


def test_ids_of_dead_letters_are_offered(opened: Terminal, dead_letter: str) -> None:
    for command in ("show", "replay", "drop"):
        line = f"solstice dlq {command} "
        offered(partial(opened.completed, f"{line}{dead_letter[:4]}"), f"{line}{dead_letter} ")


def test_files_are_offered_where_a_file_is_meant(opened: Terminal, home: Path) -> None:
    (home / "forges.toml").touch()
    assert opened.completed("forge-integration serve --forge-config for") == (
        "forge-integration serve --forge-config forges.toml "
    )
    assert opened.completed("solstice dlq import forg") == "solstice dlq import forges.toml "
    assert opened.completed("solstice show forg") == "solstice show forg"


@pytest.mark.parametrize("answers", ["refused", "silent", "no API"])
def test_nothing_is_offered_or_printed_when_no_service_answers(
    shell: str, home: Path, programs: Path, answers: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if answers == "refused":
            server.close()
        url = "not a url" if answers == "no API" else f"http://127.0.0.1:{port}"
        environment = {**clean_environment(tmp_path / "state"), "SOLSTICE_URL": url}
        with terminal(shell, home, environment, programs=programs) as opened:
            assert opened.completed("solstice show ") == "solstice show "
            assert opened.completed("solstice cancel 3f") == "solstice cancel 3f"
            assert opened.candidates("solstice rerun ") == []
            assert re.findall(r"[Ee]rror|Traceback|refused|Alarm", opened.seen) == []
