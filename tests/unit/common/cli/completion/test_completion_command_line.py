"""Completion is installed, printed, and answers a shell without running a command."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from solstice_common.cli import program
from solstice_common.cli.completion.command_line import InstallCompletion, ShowCompletion
from solstice_common.cli.completion.shell_scripts import VARIABLE, script
from solstice_common.errors import ConfigurationError


def trouble(incomplete: str) -> list[str]:
    raise OSError(incomplete)


app = typer.Typer(name="tool", add_completion=False)


@app.callback()
def _root(*, _install: InstallCompletion = False, _show: ShowCompletion = False) -> None: ...


@app.command()
def paint(what: Annotated[str, typer.Argument(autocompletion=trouble)]) -> None:
    typer.echo(what)


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("ZDOTDIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: (request.param, f"/bin/{request.param}"))
    return str(request.param)


def test_completion_is_installed_once_beside_what_a_file_has(shell: str, tmp_path: Path) -> None:
    for name in (".bashrc", ".zshrc"):
        (tmp_path / name).write_text("own words")
    for _ in range(2):
        assert CliRunner().invoke(app, ["--install-completion"]).exit_code == 0
    texts = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    (installed,) = [path for path, text in texts.items() if text == script(shell, "tool")]
    added = {path.name: text.splitlines()[1:] for path, text in texts.items() if text.startswith("own words")}
    assert added == {
        ".bashrc": [f"source '{installed}'"] if shell == "bash" else [],
        ".zshrc": ["fpath+=~/.zfunc; autoload -Uz compinit; compinit"] if shell == "zsh" else [],
    }


def test_the_script_can_be_had_without_installing_it(shell: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["--show-completion"]).output == script(shell, "tool")
    assert not list(tmp_path.iterdir())


def test_a_shell_without_completion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("tcsh", "/bin/tcsh"))
    refused = CliRunner().invoke(app, ["--install-completion"])
    assert isinstance(refused.exception, ConfigurationError)
    assert "there is completion for bash, zsh, fish, and this shell is tcsh" in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "printed"),
    [(["pa"], "paint\t\n"), (["paint", ""], ""), (["nonsense", ""], "")],
    ids=["an answer", "trouble", "no command"],
)
def test_a_shell_is_answered_and_no_command_is_run(words: list[str], printed: str) -> None:
    done = subprocess.run(
        [sys.executable, __file__, *words],
        env={**os.environ, VARIABLE: "fish"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


if __name__ == "__main__":
    program.run(app)
