"""Imports subcommands when they are called. The help and the version import none of them."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from solstice_common.cli.program import Commands, in_plain_text, silence_logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """A subcommand: its name, its help's first sentence, and what it imports."""

    name: str
    help: str
    panel: str
    target: str
    """`package.module:attribute`, a function with Typer's annotations or a `typer.Typer`."""

    def load(self) -> Any:
        """Import the command, and return it."""
        module, _, attribute = self.target.partition(":")
        with _without_collections():
            loaded = getattr(import_module(module), attribute)
        group = typer.Typer(add_completion=False)
        if isinstance(loaded, typer.Typer):
            group.add_typer(loaded, name=self.name, rich_help_panel=self.panel)
        else:
            group.command(self.name, rich_help_panel=self.panel)(loaded)
        return typer.main.get_group(group).commands[self.name]


@contextmanager
def _without_collections() -> Iterator[None]:
    """Search for no garbage meanwhile.

    What imports make lives as long as the process, and the search takes up to a fifth of the time of a short command.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def lazily(deferred: Sequence[Deferred]) -> type[Commands]:
    """Return the class of a root group with these subcommands.

    They come before those that are registered on its `typer.Typer`.
    """

    class LazyCommands(Commands):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self._deferred = {each.name: each for each in deferred}
            stand_ins = {
                each.name: TyperCommand(each.name, help=each.help, rich_help_panel=each.panel)
                for each in deferred
            }
            self.commands = {**stand_ins, **self.commands}

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args[0] in self._deferred:
                self.load(args[0])
                silence_logs()
            return super().resolve_command(ctx, args)

        def load(self, name: str) -> None:
            """Replace a deferred subcommand by the command itself."""
            self.commands[name] = command = self._deferred.pop(name).load()
            if self.rich_markup_mode is None:
                in_plain_text(command)

        def load_all(self) -> None:
            for name in list(self._deferred):
                self.load(name)

    return LazyCommands


def loaded(app: typer.Typer) -> Any:
    """Return the root command of `app` with all its subcommands.

    For code that lists them: documentation, tests.
    """
    root = typer.main.get_command(app)
    if hasattr(root, "load_all"):
        root.load_all()
    return root
