"""The protocol of launchers: where the steps of an attempt run, and by which commands."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.workspaces import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the supervisor of one attempt starts."""

    directory: Path
    """The working directory of the commands."""
    environment: Mapping[str, str]
    """Of every command; a step adds its own variables and secrets."""
    commands: Sequence[Sequence[str]]
    """One for each step. It ends as its step does."""


class Launcher(Protocol):
    """Prepares attempts; any number may be under way at once.

    `launch` is entered after the checkout. Leaving ends what it has set up, also for a cancelled caller. It raises
    nothing but OSError or RuntimeError, which count as failures of the machine.
    """

    @property
    def isolates(self) -> bool:
        """Whether a hostile job is isolated from the rest of the machine."""
        ...

    def launch(self, execution: Execution, place: Workspace) -> AbstractAsyncContextManager[Launch]: ...
