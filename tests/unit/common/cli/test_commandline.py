"""A command line ends with the right exit code and a sentence, never with values."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
import structlog
import typer
from pydantic import Field, SecretStr

from solstice_common.cli.options import with_settings
from solstice_common.cli.program import CONTEXT_SETTINGS, Exit, run
from solstice_common.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DeadLettersInUse,
    InvalidMessage,
    SchemaTooNew,
    ServiceUnavailable,
    SolsticeError,
    StoreUnavailable,
)
from solstice_common.settings import BrokerSettings, SolsticeSettings


class Settings(SolsticeSettings):
    nest_size: int = Field(default=3, ge=1, description="Eggs.")
    nest_dry: bool = Field(default=True, description="Whether it is dry.")
    nest_name: str | None = Field(default=None, description="What it is called.")
    nest_labels: list[str] = Field(default_factory=lambda: ["reed"], description="Labels.")
    nest_secret: SecretStr = Field(default=SecretStr(""), description="Hidden.")
    nest_other_secret: SecretStr | None = Field(default=None, description="Hidden as well.")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, logging_as_it_was: None) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(field.upper(), raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


class Places(SolsticeSettings):
    amqp_url: str = Field(default="amqp://127.0.0.1", description="The broker.")
    database_url: str = Field(default="sqlite:///ci.db", description="The store.")
    solstice_url: str = Field(default="http://127.0.0.1", description="The API.")


class CommandLine:
    """A command line of one command, run as a process would run it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.seen: list[tuple[Settings, str, int]] = []
        self.raises: BaseException | None = None

    def __call__(self, *arguments: str) -> int | str | None:
        app = typer.Typer(context_settings=dict(CONTEXT_SETTINGS))

        @app.command()
        @with_settings(Settings)
        def build(
            settings: Settings,
            what: Annotated[str, typer.Argument()] = "nest",
            times: Annotated[int, typer.Option("--times")] = 1,
        ) -> None:
            """Build it."""
            self.seen.append((settings, what, times))
            if self.raises is not None:
                raise self.raises

        self._monkeypatch.setattr(sys, "argv", ["build", *arguments])
        with pytest.raises(SystemExit) as exited:
            run(app)
        return exited.value.code

    @property
    def settings(self) -> Settings:
        return self.seen[-1][0]


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(monkeypatch)


@pytest.mark.parametrize("arguments", [("caf\udce9",), ("--nest-name", "caf\udce9"), ("--nest-name=\udce9",)])
def test_an_argument_that_is_not_utf_8_is_refused_before_anything_happens(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert command_line(*arguments) == Exit.USAGE
    reported = capsys.readouterr().err
    assert reported.startswith(f"error: argument {len(arguments)} is not UTF-8: write it")
    assert "caf" not in reported  # it may be a secret
    assert command_line.seen == []


def test_a_note_of_an_error_is_a_sentence_of_its_own(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line.raises = ServiceUnavailable("mill", "http://127.0.0.1:1", "Connection refused")
    command_line.raises.add_note("This is the default.")
    assert command_line() == Exit.UNAVAILABLE
    assert capsys.readouterr().err.endswith(": Connection refused. This is the default.\n")


@pytest.mark.parametrize(
    ("error", "flag"),
    [
        (lambda: BrokerUnavailable("amqp://127.0.0.1", "refused"), "--amqp-url"),
        (lambda: StoreUnavailable("ci.db", "locked"), "--database-url"),
        (lambda: ServiceUnavailable("orchestrator", "http://127.0.0.1", "refused"), "--solstice-url"),
    ],
    ids=["broker", "store", "service"],
)
def test_only_an_address_that_was_not_given_is_named_as_a_default(
    error: Callable[[], SolsticeError],
    flag: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    app = typer.Typer()

    @app.command()
    @with_settings(Places)
    def call(settings: Places) -> None:
        assert settings.solstice_url
        raise error()

    for name in Places.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("SOLSTICE_HOME", str(tmp_path))
    for given in ([], [flag, "x"]):
        monkeypatch.setattr(sys, "argv", ["call", *given])
        with pytest.raises(SystemExit):
            run(app)
        shown = capsys.readouterr().err
        assert ("This is the default" in shown) is (given == [])
        assert [each for each in ("--amqp-url", "--database-url", "--solstice-url") if each in shown] == (
            [] if given else [flag]
        )


class TestFlags:
    def test_without_any_the_defaults_hold(self, command_line: CommandLine) -> None:
        assert command_line() == Exit.OK
        assert command_line.seen == [(Settings(), "nest", 1)]

    def test_a_flag_wins_over_the_environment_which_wins_over_the_default(
        self, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NEST_SIZE", "4")
        monkeypatch.setenv("NEST_DRY", "true")
        assert command_line() == Exit.OK
        assert command_line.settings.nest_size == 4
        assert command_line("--nest-size", "5", "--no-nest-dry", "--nest-name", "reeds") == Exit.OK
        assert (
            command_line.settings.nest_size,
            command_line.settings.nest_dry,
            command_line.settings.nest_name,
        ) == (
            5,
            False,
            "reeds",
        )

    def test_the_commands_own_arguments_stay_its_own(self, command_line: CommandLine) -> None:
        assert command_line("dam", "--times", "2", "--nest-size", "9") == Exit.OK
        assert command_line.seen[0][1:] == ("dam", 2)

    @pytest.mark.parametrize("flag", ["--help", "-h"])
    def test_help_shows_each_with_its_description_variable_and_default(
        self, command_line: CommandLine, flag: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command_line(flag) == Exit.OK
        shown = capsys.readouterr().out
        for expected in ("--nest-size", "Eggs. (NEST_SIZE)", "3", "--nest-dry", "--no-nest-dry", "Build it."):
            assert expected in shown
        assert command_line.seen == []

    def test_a_secret_has_no_flag_and_comes_from_the_environment(
        self, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("NEST_SECRET", "hush")
        monkeypatch.setenv("NEST_OTHER_SECRET", "hush-hush")
        assert command_line("--help") == Exit.OK
        assert "secret" not in capsys.readouterr().out
        assert command_line("--nest-secret", "x") == Exit.USAGE
        assert command_line("--nest-other-secret", "x") == Exit.USAGE
        assert command_line() == Exit.OK
        assert command_line.settings.nest_secret.get_secret_value() == "hush"

    def test_every_setting_of_the_broker_has_a_flag_of_the_same_name(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        app = typer.Typer()

        @app.command()
        @with_settings(BrokerSettings)
        def consume(settings: BrokerSettings) -> None:
            raise AssertionError(settings)

        monkeypatch.setattr(sys, "argv", ["consume", "--help"])
        with pytest.raises(SystemExit):
            run(app)
        shown = capsys.readouterr().out
        for name in ("url", "exchange", "queue", "routing-key", "dlx", "dlq", "prefetch", "queue-type"):
            assert f"--amqp-{name} " in shown
            assert f"AMQP_{name.replace('-', '_').upper()}" in shown


class TestErrors:
    @pytest.mark.parametrize("way", ["flag", "environment"])
    def test_a_wrong_setting_is_named_and_is_a_usage_error(
        self,
        command_line: CommandLine,
        way: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        if way == "environment":
            monkeypatch.setenv("NEST_SIZE", "none")
        assert command_line(*(["--nest-size", "none"] if way == "flag" else [])) == Exit.USAGE
        assert command_line.seen == []
        error = capsys.readouterr().err
        assert error.startswith("error: NEST_SIZE: ")
        assert error.count("\n") == 1

    def test_an_unknown_flag_is_a_usage_error(self, command_line: CommandLine) -> None:
        assert command_line("--nonsense") == Exit.USAGE

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (ConfigurationError("wrong"), Exit.USAGE),
            (BrokerUnavailable("amqp://127.0.0.1", "refused"), Exit.UNAVAILABLE),
            (StoreUnavailable("ci.db", "locked"), Exit.UNAVAILABLE),
            (DeadLettersInUse("solstice.jobs.v1.dlq", 5), Exit.UNAVAILABLE),
            (ServiceUnavailable("orchestrator", "http://127.0.0.1", "refused"), Exit.UNAVAILABLE),
            (SchemaTooNew("ci.db", 2, 1), Exit.FAILED),
            (InvalidMessage("not_json", "x"), Exit.FAILED),
            (SolsticeError("no"), Exit.FAILED),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
    )
    @pytest.mark.parametrize("grouped", [False, True], ids=["plain", "in a group"])
    def test_an_error_we_have_a_name_for_is_one_plain_line_and_an_exit_code(
        self,
        command_line: CommandLine,
        error: SolsticeError,
        code: Exit,
        grouped: bool,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        command_line.raises = (
            ExceptionGroup("tasks", [ExceptionGroup("inner", [error])]) if grouped else error
        )
        assert command_line() == code
        captured = capsys.readouterr()
        assert captured.err == f"error: {error}\n"
        assert captured.out == ""

    @pytest.mark.parametrize("grouped", [False, True], ids=["plain", "in a group"])
    def test_an_error_without_a_name_is_not_hidden(self, command_line: CommandLine, grouped: bool) -> None:
        bug = LookupError("bug")
        command_line.raises = ExceptionGroup("tasks", [bug]) if grouped else bug
        with pytest.raises((LookupError, ExceptionGroup)):
            command_line()

    def test_a_command_may_choose_its_exit_code(self, command_line: CommandLine) -> None:
        command_line.raises = typer.Exit(Exit.FAILED)
        assert command_line() == Exit.FAILED

    def test_nothing_is_logged_unless_a_service_says_how(
        self, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command_line() == Exit.OK
        structlog.get_logger("test_commandline").warning("nest.flooded")
        captured = capsys.readouterr()
        assert captured.out + captured.err == ""


BUG = """
import typer
from solstice_common.cli.program import run
app = typer.Typer(pretty_exceptions_show_locals=True)
@app.command()
def build() -> None:
    secret = "heron"[::-1]
    raise RuntimeError("a bug")
run(app)
"""


def test_the_traceback_of_a_bug_shows_no_values() -> None:
    ended = subprocess.run([sys.executable, "-c", BUG], capture_output=True, text=True, check=False)
    assert "a bug" in ended.stderr
    assert "noreh" not in ended.stdout + ended.stderr
