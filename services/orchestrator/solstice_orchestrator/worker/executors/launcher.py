"""The protocol of launchers: where the steps of an attempt run, and by which commands."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from solstice_orchestrator.domain.jobs import JobSpec, Outcome, StepSpec
from solstice_orchestrator.worker.artifacts.sources import ArtifactSource
from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.executors.service_output import ServiceOutput
from solstice_orchestrator.worker.workspaces import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the supervisor of one attempt starts."""

    directory: Path
    """The working directory of the commands."""
    environment: Mapping[str, str]
    """Of every command; a step adds its own variables and secrets."""
    commands: Sequence[Sequence[str]]
    """One for each step, and for each of those that are added. It ends as its step does."""
    added_steps: Sequence[StepSpec] = ()
    """Steps of our own behind those of the job."""
    setup: Sequence[str] = ()
    """A command that has to end well before the first step. While it runs, the job is not silent."""
    setup_seconds: float = 0.0
    """The most that it may take, before the job's own time begins; 0: it is a part of the job's time."""
    own_environment: Mapping[str, str] = field(default_factory=dict)
    """Of the commands themselves, where the environment of steps is handed on by them."""
    prefix: str = ""
    """What the names of the steps' variables begin with in the commands' environment."""
    services: Mapping[str, ServiceOutput] = field(default_factory=dict)
    """The outputs of the servers that the setup starts, by name."""
    storage: Sequence[Path] = ()
    """The directories outside of the workspace in which those servers write."""
    removes: Path | None = None
    """A directory that the supervisor removes at its end, if it is small."""
    isolates: bool = False
    """Whether the steps cannot reach their supervisor."""
    source: ArtifactSource | None = None
    """Where the files of the steps are once all has ended; None: in the workspace."""
    leaves_reports: bool = True
    """Whether files can be read also when a step failed, as test reports are."""
    written: ArtifactSource | None = None
    """The folder with the file of outputs once all has ended; None: the one for temporary files."""
    title: str = "$ container"
    notice: str = ""
    """Written into the log before the first step, after the title; the place where the steps run."""
    judged: Callable[[Outcome], Outcome] = lambda outcome: outcome
    """Return the outcome of the attempt, once its supervisor has ended with this one."""

    def with_added_steps(self, spec: JobSpec) -> JobSpec:
        return replace(spec, steps=(*spec.steps, *self.added_steps)) if self.added_steps else spec

    def numbered(self, spec: JobSpec) -> JobSpec:
        """Return the job with its steps at the numbers that the supervisor gives them."""
        return replace(spec, steps=(StepSpec(name="setup", run=""), *spec.steps)) if self.setup else spec

    def handed(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return variables of steps under the names by which the commands get them."""
        return {f"{self.prefix}{name}": value for name, value in variables.items()}


class Launcher(Protocol):
    """Prepares attempts; any number may be under way at once.

    `launch` is entered after the checkout; it begins `execution.provisioning` where there is something to prepare. Leaving ends what it has set up, also for a cancelled caller. It raises
    nothing but OSError or RuntimeError, which count as failures of the machine.
    """

    @property
    def isolates(self) -> bool:
        """Whether a hostile job is isolated from the rest of the machine."""
        ...

    def needs_files(self, execution: Execution, /) -> bool:
        """Return whether `launch` needs the files of a small checkout; else the supervisor writes them."""
        ...

    def system(self, execution: Execution, /) -> str | None:
        """Return on what kind of system the job runs.

        Caches are found on the same kind alone. None: there are no caches.
        """
        ...

    def launch(
        self, execution: Execution, workspace: Workspace
    ) -> AbstractAsyncContextManager[Launch | Outcome]:
        """Prepare an attempt; an outcome says how it ends without one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchersByLabel:
    """Launches each job as its label says."""

    default: Launcher
    by_label: Mapping[str, Launcher]

    @property
    def isolates(self) -> bool:
        """Whether jobs of some label are isolated."""
        return any(launcher.isolates for launcher in (self.default, *self.by_label.values()))

    def of(self, label: str) -> Launcher:
        return self.by_label.get(label, self.default)

    def needs_files(self, execution: Execution, /) -> bool:
        return self.of(execution.spec.runs_on).needs_files(execution)

    def system(self, execution: Execution, /) -> str | None:
        return self.of(execution.spec.runs_on).system(execution)

    def launch(
        self, execution: Execution, workspace: Workspace
    ) -> AbstractAsyncContextManager[Launch | Outcome]:
        return self.of(execution.spec.runs_on).launch(execution, workspace)
