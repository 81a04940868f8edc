"""The facts about a run that `on` and `if` look at when it is planned. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from solstice_common.values.globs import fits
from solstice_orchestrator.workflow.conditions.terms import Fact
from solstice_orchestrator.workflow.conditions.trigger import Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPaths:
    """The paths that a run changed, or why they are not known."""

    paths: Collection[str] = ()
    unknown: str = ""
    """When this is not empty, everything counts as changed."""

    def fit(self, patterns: Collection[str], *, without: Collection[str] = ()) -> bool:
        """Return whether a path fits one of the patterns, and none of `without`."""
        return bool(self.unknown) or any(
            fits(path, patterns) and not fits(path, without) for path in self.paths
        )


PATHS_NOT_READ = ChangedPaths(unknown="they were not asked for")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run before its jobs begin."""

    trigger: Trigger
    inputs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    changed: ChangedPaths = PATHS_NOT_READ

    def known(self, fact: Fact) -> str | bool | None:
        """Return what a fact is; None for what only the run's jobs will show."""
        match fact:
            case ("input", name):
                return self.inputs[name]
            case ("changed", *patterns):
                return self.changed.fit(patterns)
            case (name,) if name in FACTS:
                return str(getattr(self.trigger, name))
            case _:
                return None


FACTS = ("event", "branch", "tag", "target_branch", "default_branch", "repository")
"""The facts that are a word of the language; each is an attribute of the trigger."""
