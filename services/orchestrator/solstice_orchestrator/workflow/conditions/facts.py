"""The facts about a run that `on` and `if` look at when it is planned. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from solstice_common.values.globs import fits
from solstice_orchestrator.workflow.conditions.terms import Fact
from solstice_orchestrator.workflow.conditions.trigger import Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run before its jobs begin."""

    trigger: Trigger
    inputs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    changed: Collection[str] | None = None
    """The paths that it changed; None: that is not known, and everything counts as changed."""

    def known(self, fact: Fact) -> str | bool | None:
        """Return what a fact is; None for what only the run's jobs will show."""
        match fact:
            case ("input", name):
                return self.inputs[name]
            case ("changed", *patterns):
                return self.has_changed(patterns)
            case (name,) if name in FACTS:
                return str(getattr(self.trigger, name))
            case _:
                return None

    def has_changed(self, patterns: Collection[str]) -> bool:
        """Return whether one of the changed paths fits."""
        return self.changed is None or any(fits(path, patterns) for path in self.changed)


FACTS = ("event", "branch", "tag", "target_branch", "default_branch", "repository")
"""The facts that are a word of the language; each is an attribute of the trigger."""
