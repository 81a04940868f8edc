"""How one more slot of a label changes the waits of a trace. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from solstice_orchestrator.scheduling.capacity import Capacity, capacity
from solstice_orchestrator.simulation.report import WaitStatistics, waits_of_label
from solstice_orchestrator.simulation.tally import SimulationTally
from solstice_orchestrator.simulation.trace import TraceRun, of_label
from solstice_orchestrator.simulation.virtual_run import SimulationConfig, simulate_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraSlotEffect:
    """The waits of a label's jobs with one more slot."""

    label: str
    slots: int
    """The slots with the extra one."""
    before: WaitStatistics
    after: WaitStatistics


def with_extra_slot(
    trace: Callable[[], Iterable[TraceRun]], config: SimulationConfig, before: SimulationTally, label: str
) -> ExtraSlotEffect | None:
    """Simulate the trace with one more slot; None: no job of the label ran `before`.

    `trace` returns the trace from its start.
    """
    waited = waits_of_label(before, label)
    if waited is None:
        return None
    more, after = _with_extra_slot(config.capacity, label), SimulationTally()
    runs = of_label(trace(), label) if _are_independent(config, before) else trace()
    simulate_trace(runs, replace(config, capacity=more), after)
    waits = waits_of_label(after, label)
    if waits is None:
        return None
    return ExtraSlotEffect(label=label, slots=more.slots[label], before=waited, after=waits)


def _with_extra_slot(total: Capacity, label: str) -> Capacity:
    """Return the capacity with one more slot; a limit below the sum of slots stays."""
    slots = {**total.slots, label: total.slots[label] + 1}
    return capacity(slots, 0 if _is_unlimited(total) else total.limit)


def _are_independent(config: SimulationConfig, before: SimulationTally) -> bool:
    """Return whether jobs of different labels do not affect each other.

    Then one label can be simulated alone.
    """
    return _is_unlimited(config.capacity) and not config.limits.by_sender and not before.entangled


def _is_unlimited(total: Capacity) -> bool:
    return total.limit >= sum(total.slots.values())
