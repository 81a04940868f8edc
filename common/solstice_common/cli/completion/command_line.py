"""Answers a shell that completes a command line, and installs what makes it ask."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from solstice_common.cli.completion.candidates import candidates
from solstice_common.cli.completion.shell_scripts import SHELLS, VARIABLE, answer, script, words_of
from solstice_common.errors import ConfigurationError

_ZSH_LINES: Final = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"


def answer_shell(app: typer.Typer) -> None:
    """Answer a shell that asks for candidates, and end; with nothing in case of trouble."""
    shell = os.environ.pop(VARIABLE, None)
    if shell not in SHELLS:
        return
    with suppress(Exception):  # a person who presses Tab wants no traceback in the line
        words, typed = words_of(shell, sys.argv[1:], os.environ)
        found = candidates(typer.main.get_command(app), app.info.name or "", words, typed)
        text = answer(shell, found, os.environ)
        sys.stdout.write(f"{text}\n" if text else "")
        sys.stdout.flush()
    os._exit(0)  # without waiting for a name server that does not answer


def _install(context: typer.Context, requested: bool) -> None:  # noqa: FBT001  typer calls it with the flag's value
    if not requested or context.resilient_parsing:
        return
    shell, program = _shell(), str(context.command.name)
    home = Path.home()
    match shell:
        case "bash":
            target = home / ".bash_completions" / f"{program}.sh"
            _add_line(home / ".bashrc", f"source '{target}'")
        case "zsh":
            target = home / ".zfunc" / f"_{program}"
            _add_line(Path(os.environ.get("ZDOTDIR") or home) / ".zshrc", _ZSH_LINES)
        case _:
            settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
            target = settings / "fish" / "completions" / f"{program}.fish"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(script(shell, program))
    typer.echo(f"completion of {program} for {shell} is in {target}: open a new terminal to use it")
    raise typer.Exit


def _show(context: typer.Context, requested: bool) -> None:  # noqa: FBT001  typer calls it with the flag's value
    if requested and not context.resilient_parsing:
        typer.echo(script(_shell(), str(context.command.name)), nl=False)
        raise typer.Exit


def _shell() -> str:
    """Return the shell that runs this command, else the person's own."""
    import shellingham  # noqa: PLC0415  other commands do not pay for it

    try:
        name: str = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise ConfigurationError(
            f"there is completion for {', '.join(SHELLS)}, and this shell is {name or 'unknown'}: "
            "run the command in one of them"
        )
    return name


def _add_line(file: Path, line: str) -> None:
    text = file.read_text() if file.exists() else ""
    if line not in text.splitlines():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n")


InstallCompletion = Annotated[
    bool,
    typer.Option(
        "--install-completion",
        help="Install completion for this shell: bash, zsh or fish.",
        callback=_install,
        is_eager=True,
    ),
]
ShowCompletion = Annotated[
    bool,
    typer.Option(
        "--show-completion",
        help="Print the script that --install-completion installs.",
        callback=_show,
        is_eager=True,
    ),
]
