"""Subcommands of `solstice` are imported when called, and the top help matches theirs."""

import gc
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from solstice_cli.main import COMMANDS, app
from solstice_common.cli.lazy import Deferred, loaded

HEAVY = ("aio_pika", "asyncpg", "pydantic_settings", "solstice_orchestrator", "solstice_forge", "structlog")
"""Typer itself imports pydantic."""


@pytest.mark.parametrize("deferred", COMMANDS, ids=lambda each: each.name)
def test_the_help_of_the_root_says_what_the_command_says(deferred: Deferred) -> None:
    command = deferred.load()
    assert command.name == deferred.name
    assert command.rich_help_panel == deferred.panel
    assert " ".join(command.help.partition("\n\n")[0].split()) == deferred.help


@pytest.mark.parametrize("arguments", [["version"], ["version", "--json"], ["--version"], ["-h"], []])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from solstice_cli.main import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.rstrip().endswith("[]"), done.stdout[-200:]


def test_a_mistyped_command_is_corrected_without_importing_any() -> None:
    result = CliRunner().invoke(app, ["rnus"])
    assert result.exit_code == 2
    assert "'runs'" in result.output


def test_no_garbage_is_searched_while_a_command_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "otter.py").write_text("import gc\nsearched = gc.isenabled()\ndef swim() -> None: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert gc.isenabled()
    Deferred(name="swim", help="Swim.", panel="Otters", target="otter:swim").load()
    assert not import_module("otter").searched
    assert gc.isenabled()
    with pytest.raises(AttributeError):
        Deferred(name="dive", help="Dive.", panel="Otters", target="otter:dive").load()
    assert gc.isenabled()


def test_every_command_can_be_loaded_at_once() -> None:
    root = loaded(app)
    assert {each.name for each in COMMANDS} < set(root.commands)
    assert root.commands["workers"].commands["pause"].params


def test_the_orchestrators_own_commands_are_those_on_its_database_its_scheduler_and_its_reader() -> None:
    """All others ask its API, so that they work from any machine."""
    commands = [each for each in COMMANDS if each.target.startswith("solstice_orchestrator.")]
    assert {each.name for each in commands} == {"store", "purge", "simulate", "workflow"}
