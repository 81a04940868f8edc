"""Every option with a wrong value, and missing arguments: a sentence and exit code 2."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import structlog

from solstice_cli.main import app as solstice
from solstice_common.cli import options, program
from solstice_common.cli.lazy import loaded
from solstice_forge.cli import app as forge_integration
from solstice_orchestrator.cli import app as orchestrator
from tests.servers.forks import run_command
from tests.servers.service_process import base_environment

PROGRAMS = {"solstice": solstice, "forge-integration": forge_integration, "orchestrator": orchestrator}
TREES = {name: loaded(app) for name, app in PROGRAMS.items()}
"""The root command of each program; making one takes a tenth of a second."""
Command = Any
"""What Typer makes of an app: a class of its private copy of click, and for groups another one, which has `commands`."""
PYDANTICS_WORDS = re.compile(
    r"Input should|String should|validation error|Value error|unable to parse|Traceback|pydantic"
)
WRONG = "none of these"
"""No number, age, choice, time, URL or file."""
CHECKED_TEXT = {
    *("--older-than", "--since", "--expires", "--delay", "--not-before", "--at", "--event", "--over"),
    *("--slots", "--labels", "--repository-caps", "--owner-caps", "--owner-starts-per-hour"),
    *("--label-start-rates", "--repository-start-rates", "--to", "--source", "--vm-images"),
}
"""Options of free text that commands read themselves."""
GOOD = {
    "repo_url": "https://forge.example/a/b.git",
    "commit_sha": "c" * 40,
    "trace": "trace.jsonl",
    "slots": "linux=1",
    "older_than": "30d",
    "to": "high",
    "from": "sqlite:///store.db",
    "source": "github",
    "target": "postgresql://nobody@127.0.0.1:9/none",
    "out": "trace.jsonl",
    "scope": "read",
    "cron": "@daily",
    "branch": "main",
}
GIVEN_WITH = {"--at": ("body", "--source", "github", "--headers", "headers", "--no-verify")}


def checked_by_its_type(kind: object) -> bool:
    return kind in {int, float} or (isinstance(kind, type) and issubclass(kind, Enum))


def leaves(command: Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command that has no commands of its own, with its words."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield words, command
        return
    for name, each in inner.items():
        yield from leaves(each, (*words, name))


def wrong() -> Iterator[tuple[str, ...]]:
    """A whole command line for each option that checks its value, with that one wrong."""
    for name, tree in TREES.items():
        for words, command in leaves(tree, (name,)):
            parameters = command.params
            for parameter in parameters:
                flag = next((name for name in parameter.opts if name.startswith("--")), "")
                panel = getattr(parameter, "rich_help_panel", None)
                kind = parameter.bare_type
                in_settings_panel = panel == options.SETTINGS_PANEL and re.search(
                    r"(port|seconds|days|mib|concurrency|prefetch|caps|rates|map|access|format|type|executor|"
                    r"governor|supersede|minutes|backlog|url|runs|hour)$",
                    flag,
                )
                if parameter.param_type_name != "option" or getattr(parameter, "is_flag", False) or not flag:
                    continue
                if not (
                    checked_by_its_type(kind)
                    or flag in {"--limit", "--attempt", "--count", "--jobs"}
                    or in_settings_panel
                    or (
                        flag in CHECKED_TEXT
                        and (flag, words[-1]) not in {("--source", "list"), ("--to", "create")}
                    )
                ):
                    continue
                others: list[str] = []
                for other in parameters:
                    if other is not parameter and other.required:
                        value = GOOD.get(other.name, "abcd")
                        others += [value] if other.param_type_name == "argument" else [other.opts[0], value]
                if flag == "--source" and words[-1] == "check":
                    others += (
                        ["body", "--headers", "headers"] if words[1] == "check" else ["--repository", "a/b"]
                    )
                yield (*words, *others, *GIVEN_WITH.get(flag, ()), flag, WRONG)


LINES = list(wrong())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("AMQP_", "SOLSTICE_", "FORGE", "GITHUB_", "DATABASE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SOLSTICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SOLSTICE_URL", "http://127.0.0.1:9")
    (tmp_path / "body").write_text("{}")
    (tmp_path / "headers").write_text("x: y")
    yield tmp_path
    structlog.reset_defaults()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("line", [pytest.param(line, id=" ".join(line)) for line in LINES])
def test_a_wrong_value_is_a_mistake_of_the_command_line(
    line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", list(line))
    with pytest.raises(SystemExit) as ended:
        program.run(PROGRAMS[line[0]])
    reported = capsys.readouterr()
    assert ended.value.code == 2, reported
    assert reported.err
    assert not PYDANTICS_WORDS.search(reported.err), reported.err


SENT = (
    "solstice",
    "webhook",
    "send",
    "--secret",
    "x",
    "--repo-url",
    "https://forge.example/a/b.git",
    "--ref",
    "main",
)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ((*SENT, "--sha", "c" * 40, "forge.example"), "forge.example is no URL: write http://HOST:PORT"),
        (
            (*SENT, "--sha", "c" * 40, "ftp://forge.example"),
            "ftp://forge.example is no URL: write http://HOST:PORT",
        ),
        (
            (*SENT, "--sha", "c0ffee"),
            "--sha 'c0ffee': the full commit id is needed, 40 or 64 hexadecimal digits",
        ),
        (("solstice", "simulate", "generate", "--out="), "--out must name a file"),
        (("solstice", "simulate", "record", "--out=."), "--out must name a file"),
        *(
            (
                ("solstice", "dlq", "list", "--amqp-url", f"{scheme}://127.0.0.1:9?cafile=/ca.pem"),
                f"AMQP_URL: cafile: such options need TLS: write {with_tls}://",
            )
            for scheme, with_tls in (("amqp", "amqps"), ("redis", "rediss"), ("nats", "tls"))
        ),
    ],
    ids=["a host", "another scheme", "a short commit", "no file", "a folder", "amqp", "redis", "nats"],
)
def test_what_no_type_checks_is_explained_too(
    line: tuple[str, ...], reported: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", list(line))
    with pytest.raises(SystemExit) as ended:
        program.run(PROGRAMS[line[0]])
    assert (ended.value.code, capsys.readouterr().err) == (2, f"error: {reported}\n")


def test_the_tree_of_commands_was_walked() -> None:
    assert len(LINES) > 150
    assert {line[0] for line in LINES} == set(PROGRAMS)


def run(
    *words: str, cwd: Path, program: str = "solstice", **settings: str
) -> "subprocess.CompletedProcess[str]":
    environment = {**base_environment(), "SOLSTICE_HOME": str(cwd / "home"), "NO_COLOR": "1", **settings}
    return run_command(program, *words, env=environment, cwd=cwd)


class TestWithoutGit:
    def test_a_missing_git_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        done = run("webhook", "send", "--secret", "x", cwd=tmp_path, PATH=str(tmp_path / "empty"))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: git is not on the PATH: install it")

    def test_a_folder_that_is_no_repository_is_named(self, tmp_path: Path) -> None:
        done = run("webhook", "send", "--secret", "x", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {tmp_path}: git says: fatal: not a git repository")

    def test_a_repository_without_a_commit_is_named(self, tmp_path: Path) -> None:
        subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
        done = run("webhook", "send", "--secret", "x", cwd=tmp_path)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


class TestWhatCannotBeReadOrWritten:
    def test_headers_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "body").write_text("{}")
        (tmp_path / "headers").write_bytes(b"x: \xff")
        words = ("check", "body", "--source", "github", "--headers", "headers", "--no-verify")
        done = run(*words, cwd=tmp_path, program="forge-integration")
        assert done.returncode == 2
        assert done.stderr == "error: --headers: headers: byte 3 is not UTF-8\n"

    def test_a_full_standard_output_is_reported(self, tmp_path: Path) -> None:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "solstice_cli", "schema", "show", "jobrequest.v1"],
                env=base_environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=100,
            )
        assert done.returncode == 3
        assert done.stderr == "error: cannot write: No space left on device\n"

    def test_a_closed_pipe_ends_it_quietly(self, tmp_path: Path) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-m", "solstice_cli", "schema", "show", "--json"],
            env=base_environment(),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=100,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, "")

    def test_ctrl_c_ends_it_without_a_traceback(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            process = subprocess.Popen(
                [sys.executable, "-m", "solstice_cli", "runs"],
                env={**base_environment(), "SOLSTICE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            connection, _ = silent.accept()
            with connection:
                connection.recv(10)
                process.send_signal(signal.SIGINT)
                try:
                    out, err = process.communicate(timeout=20)
                except subprocess.TimeoutExpired:
                    # Python drops the exception where it comes up in a finaliser: a person presses the keys again.
                    process.send_signal(signal.SIGINT)
                    out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in out + err


COMMANDS = [words for name, tree in TREES.items() for words, _ in leaves(tree, (name,))]


PRINTS_NO_ANSWER = {
    *(("forge-integration", "serve"), ("orchestrator", "run")),
    *(("forge-integration", "openapi"), ("orchestrator", "openapi"), ("solstice", "workflow", "schema")),
}
"""Services, and documents that are JSON anyway."""


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for words in COMMANDS])
def test_every_command_that_prints_an_answer_has_json(words: tuple[str, ...]) -> None:
    command = TREES[words[0]]
    for word in words[1:]:
        command = command.commands[word]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert ("--json" in flags) is (words not in PRINTS_NO_ANSWER)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("columns", [60, 80, 100, 120])
@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for words in COMMANDS])
def test_help_cuts_no_flag(
    words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*words, "-h"])
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        program.run(PROGRAMS[words[0]])
    assert ended.value.code == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    command = TREES[words[0]]
    for word in words[1:]:
        command = command.commands[word]
    flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
    assert {flag for flag in flags if not re.search(rf"{re.escape(flag)}(?![\w-])", shown)} == set()
