"""Read what the worker's side knows about a container's end, and whose failure it was. Pure."""

import json
from dataclasses import dataclass, replace

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.worker.executors.containers.container_plan import MIB, ContainerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """What `container_step.py` wrote down."""

    starting: bool = False
    """Whether the container had not started yet."""
    unstarted: int = 0
    """The exit code of a start that failed."""
    unlimited: str = ""
    """The limit that the runtime did not set."""
    gone: bool = False
    """Whether the container ended before the step had."""
    killed: int = 0
    """Processes that the kernel ended for want of memory."""


def read_facts(text: str) -> ContainerFacts:
    """Return the facts of an attempt; an empty text has none."""
    try:
        fields = json.loads(text)
    except ValueError:
        # A full disk has no place for them.
        fields = {}
    return ContainerFacts(
        starting=bool(fields.get("starting")),
        unlimited=fields.get("unlimited", ""),
        unstarted=fields.get("unstarted", 0),
        gone=bool(fields.get("gone")),
        killed=fields.get("killed", 0),
    )


def judged(outcome: Outcome, facts: ContainerFacts, plan: ContainerPlan) -> Outcome:
    """Return the outcome of an attempt, given what only the worker's side can know.

    The job can change none of the facts, so only they lead to the world's reasons.
    """
    if outcome.state in {JobState.FAILED, JobState.TIMED_OUT} and (broken := _broken_part(facts)):
        return Outcome(state=JobState.ERRORED, reason=Reason.PROVISION_FAILED, detail=broken)
    if outcome.state is not JobState.FAILED or outcome.exit_code is None:
        # It ended for another reason than the end of a step: what ended with it tells nothing.
        return outcome
    if facts.killed:
        return replace(
            outcome,
            reason=Reason.OUT_OF_MEMORY,
            detail=f"out of memory: the job's processes needed more than {plan.memory_bytes / MIB:.0f} MiB",
        )
    if facts.gone:
        return replace(outcome, exit_code=None, detail="the job ended its own container")
    return outcome


def _broken_part(facts: ContainerFacts) -> str:
    """Return what the container runtime did not do, before the first step."""
    if facts.unstarted:
        return f"the container did not start (exit code {facts.unstarted}); podman's message is in the log"
    if facts.unlimited:
        return f"the container runtime did not set the limit of {facts.unlimited}"
    return "the start of the container did not end" if facts.starting else ""
