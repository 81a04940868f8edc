"""Every command has a help text, JSON output, and the right exit codes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from solstice_cli import main
from solstice_cli.main import app
from solstice_common.cli.lazy import loaded
from solstice_common.messages.schemas import render_schemas


def commands(group: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*prefix, name))
        else:
            yield (*prefix, name)


each_command = pytest.mark.parametrize("command", list(commands(loaded(app))), ids=" ".join)


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@each_command
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_command_explains_itself(command: tuple[str, ...], flag: str) -> None:
    result = invoke(*command, flag)
    assert result.exit_code == 0
    assert re.search(r"Usage: .*" + " ".join(command), result.output)


@each_command
def test_command_answers_in_json(command: tuple[str, ...]) -> None:
    # A schema is JSON anyway.
    assert ("--json" in invoke(*command, "--help").output) is (command != ("workflow", "schema"))


def test_without_a_word_the_commands_are_listed() -> None:
    assert {command[0] for command in commands(loaded(app))} <= set(re.findall(r"[a-z]+", invoke().output))


@pytest.mark.parametrize("words", [["version"], ["--version"], ["-V"]], ids=" ".join)
def test_version_is_reported(words: list[str]) -> None:
    assert re.fullmatch(r"solstice \d+\.\d+\.\d+\n", invoke(*words).output)


@pytest.mark.parametrize("secret", ["planted ", "plan\nted", "planted\udce9", "plantéd"], ids=ascii)
def test_secret_that_cannot_be_sent_is_refused_and_not_repeated(secret: str) -> None:
    change = ("--repo-url", "https://forge.example/a/b", "--ref", "main", "--sha", "c" * 40)
    result = invoke(
        "webhook", "send", "--source", "gitlab", *change, "--secret", secret, "http://127.0.0.1:9"
    )
    assert str(result.exception).startswith("--secret: begins or ends with a space, or has characters that")
    assert "plan" not in f"{result.exception} {result.output}"


def test_unknown_command_is_a_usage_error() -> None:
    assert invoke("frobnicate").exit_code == 2


def test_known_trouble_is_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["solstice", "webhook", "send", "--source", "manual"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err == "error: --source manual is no forge: choose github, forgejo, gitea or gitlab\n"


class TestSchema:
    def test_names_are_listed(self) -> None:
        assert invoke("schema", "show").output.split() == ["jobcancel.v1", "jobrequest.v1", "jobstatus.v1"]

    def test_schema_is_printed_as_it_is_rendered(self) -> None:
        printed = invoke("schema", "show", "jobrequest.v1").output
        assert printed.encode() == render_schemas()["jobrequest.v1.json"]

    def test_schemas_are_written(self, tmp_path: Path) -> None:
        folder = tmp_path / "new"
        assert invoke("schema", "write", folder).exit_code == 0
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == render_schemas()

    def test_json_holds_all(self) -> None:
        documents = json.loads(invoke("schema", "show", "--json").output)
        assert sorted(documents) == ["jobcancel.v1", "jobrequest.v1", "jobstatus.v1"]


class TestTopology:
    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOLSTICE_HOME", str(tmp_path))

    def test_published_names_are_shown(self) -> None:
        shown = json.loads(invoke("topology", "show", "--json").output)
        assert [queue["name"] for queue in shown["queues"]] == [
            "solstice.jobs.v1",
            "solstice.jobs.v1.dlq",
            "solstice.cancels.v1",
            "solstice.cancels.v1.dlq",
            "solstice.statuses.v1",
            "solstice.statuses.v1.dlq",
        ]

    def test_classic_has_the_arguments_of_the_first_services_and_no_other(self) -> None:
        shown = json.loads(invoke("topology", "show", "--json", "--amqp-queue-type", "classic").output)
        assert shown["queues"][0]["arguments"] == {"x-dead-letter-exchange": "solstice.dlx"}

    def test_declaring_twice_is_the_same_as_once(self) -> None:
        for _ in range(2):
            result = invoke("topology", "declare")
            assert result.exit_code == 0
            assert "declared 6 exchanges and 6 queues" in result.output
