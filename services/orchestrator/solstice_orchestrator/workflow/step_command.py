"""Reads where and by what interpreter a step runs, as one command of the shell. Pure.

So no executor needs to know of either.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Final

from solstice_orchestrator.workflow.kdl import KdlValue, SourcePosition
from solstice_orchestrator.workflow.shape import line, text

DIRECTORY: Final = "working-directory"
SHELL: Final = "shell"
MAX_ARGUMENT_BYTES: Final = 120_000
"""Linux takes 128 KiB in one argument (MAX_ARG_STRLEN, execve(2))."""

_INTERPRETERS: Final[Mapping[str, str]] = {
    "bash": "--noprofile --norc -eo pipefail -c",
    "sh": "-ec",
    "python": "-c",
    "python3": "-c",
    "node": "-e",
    "perl": "-e",
    "ruby": "-e",
    "pwsh": "-NoProfile -Command",
}
_VERSION: Final = re.compile(r"(?<=python)3?\.[0-9]{1,3}$")

Fill = Callable[[str, SourcePosition], str]


def step_command(run: KdlValue, options: Mapping[str, KdlValue], fill: Fill) -> str:
    """Return what the shell of a step runs.

    `options` are its own, or else those of its job.
    """
    command = text(run, "run")
    if not command.strip():
        raise run.position.problem("run is empty; a step needs a command")
    command = fill(command, run.position)
    if shell := options.get(SHELL):
        command = f"exec {_interpreter(shell)} {shlex.quote(command)}"
        if len(command.encode()) > MAX_ARGUMENT_BYTES:
            raise run.position.problem(
                f"a program for {text(shell, SHELL)} has at most {MAX_ARGUMENT_BYTES} bytes here; put it into a file "
                "of the repository"
            )
    if directory := options.get(DIRECTORY):
        # On the first line, so that errors name the lines that the file has. The dot keeps CDPATH out.
        command = f"cd {shlex.quote(f'./{_relative(directory, fill)}')}; {command}"
    return command


def _interpreter(value: KdlValue) -> str:
    name = text(value, SHELL)
    arguments = _INTERPRETERS.get(_VERSION.sub("3", name))
    if arguments is None:
        raise value.position.problem(
            f"{name[:80]!r} is no shell that is known; known: {', '.join(_INTERPRETERS)}, python3.12 and the like. "
            'Others read a file: run="deno run build.ts"'
        )
    return f"{name} {arguments}"


def _relative(value: KdlValue, fill: Fill) -> str:
    """Return a directory of the checkout."""
    path = fill(line(value, DIRECTORY), value.position)
    if path.startswith("/") or ".." in path.split("/"):
        raise value.position.problem(
            f'{path!r} is no directory of the checkout: write it from there, as {DIRECTORY}="web/client"'
        )
    return path
