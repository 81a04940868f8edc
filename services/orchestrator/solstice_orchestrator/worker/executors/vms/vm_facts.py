"""Read the facts about a VM's end, and whose failure it was. Pure."""

import json
import signal
from dataclasses import dataclass, replace
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.worker.executors.vms.vm_plan import MIB, VmPlan

DETAIL_LENGTH: Final = 300
_CRASHES: Final = frozenset(
    {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
)
"""How QEMU ends by its own errors, which a guest can provoke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFacts:
    """What `vm_host.py` wrote down, and the kernel."""

    starting: bool = False
    """Whether the VM was not ready yet."""
    unready: str = ""
    """Why it never was."""
    full: bool = False
    """Whether that was for lack of disk space."""
    gone: int | None = None
    """The exit code of QEMU, where it ended before a step had."""
    starved: bool = False
    """Whether the kernel ended QEMU because it had used all memory that it may."""
    killed: int = 0
    """Processes that the guest's kernel ended for lack of memory."""
    lost: bool = False
    """Whether `vm_host.py` was killed."""
    words: str = ""
    """The end of what QEMU wrote about its errors."""
    console: str = ""
    """The end of what the guest wrote on its console."""


def read_vm_facts(text: str) -> VmFacts:
    """Return the facts of an attempt; an empty text has none."""
    try:
        fields = json.loads(text)
    except ValueError:
        # A full disk has no place for them.
        fields = {}
    return VmFacts(
        starting=bool(fields.get("starting")),
        unready=fields.get("unready") or "",
        full=bool(fields.get("full")),
        gone=fields.get("gone"),
        killed=fields.get("killed", 0),
        lost=bool(fields.get("lost")),
        words=fields.get("words", ""),
        console=fields.get("console", ""),
    )


def has_crashed(facts: VmFacts) -> bool:
    """Return whether QEMU ended by an error of its own, which operators want to know."""
    return facts.gone in _CRASHES


def judged(outcome: Outcome, facts: VmFacts, plan: VmPlan) -> Outcome:
    """Return the outcome of an attempt, given what only the worker's side can know.

    A guest cannot change these facts, except that it can end its VM, or make QEMU crash: both count as its own.
    """
    if outcome.state not in {JobState.FAILED, JobState.TIMED_OUT}:
        return outcome
    if facts.unready or facts.starting:
        why = facts.unready or "the start of the VM did not end"
        reason = Reason.MACHINE_FAILED if facts.full else Reason.PROVISION_FAILED
        return Outcome(state=JobState.ERRORED, reason=reason, detail=why + last_words(facts))
    if outcome.step is None and outcome.exit_code is not None:
        # Before the first step, so the job had no part in it, even where nothing was written down yet.
        return Outcome(
            state=JobState.ERRORED,
            reason=Reason.PROVISION_FAILED,
            detail=f"the process that starts the job's VM was killed (exit code {outcome.exit_code})",
        )
    if outcome.state is not JobState.FAILED or outcome.exit_code is None:
        # It ended for another reason than the end of a step: what ended with it tells nothing.
        return outcome
    return _judged_failure(outcome, facts, plan)


def _judged_failure(outcome: Outcome, facts: VmFacts, plan: VmPlan) -> Outcome:
    """Return whose failure the end of a step was."""
    if facts.gone is not None and facts.starved:
        # Its limit has room for all that an honest guest makes QEMU use.
        detail = "out of memory: QEMU needed more for the job's VM than any VM of this size should"
        return replace(outcome, reason=Reason.OUT_OF_MEMORY, exit_code=None, detail=detail)
    if killer := _killer(facts):
        return Outcome(state=JobState.ERRORED, reason=Reason.EXECUTOR_FAILED, detail=killer)
    if facts.gone is not None:
        return replace(outcome, exit_code=None, detail=f"the job ended its own VM{last_words(facts)}")
    if facts.killed:
        return replace(
            outcome,
            reason=Reason.OUT_OF_MEMORY,
            detail=f"out of memory: the job's VM has {plan.memory_bytes / MIB:.0f} MiB",
        )
    return outcome


def _killer(facts: VmFacts) -> str:
    """Return what was killed from outside."""
    if facts.lost:
        return "the process that holds the job's VM was killed"
    if facts.gone is not None and facts.gone < 0 and not has_crashed(facts):
        return f"the job's VM was killed by signal {-facts.gone}"
    return ""


def last_words(facts: VmFacts) -> str:
    """Return the last line of QEMU or its guest, for a sentence's end."""
    for who, text in (("QEMU", facts.words), ("its console", facts.console)):
        lines = text.splitlines()
        if lines:
            # A kernel says why it panics, and then more.
            shown = next((line for line in lines if "panic" in line), lines[-1])
            return f"; the last words of {who}: {shown[-DETAIL_LENGTH:]}"
    return ""
