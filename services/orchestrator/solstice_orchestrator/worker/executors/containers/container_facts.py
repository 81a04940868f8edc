"""Read what the worker's side knows about a container's end, and whose failure it was. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.worker.executors.containers.container_plan import MIB, ContainerPlan, refused

FIRST_OF_SIGNALS: Final = 128
"""Larger exit codes are those of shells for signals."""
NO_TAILS: Final[Mapping[str, str]] = MappingProxyType({})
_CANNOT_RUN: Final = re.compile(
    r"attempted to invoke a command that was not found|executable file .*not found|exec format error|exec: .{0,300}permission denied|"
    r"unable to find (?:user|group)|no matching entries in"
)


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
    """Processes that the kernel ended for lack of memory."""
    service: str = ""
    """The service that kept the steps from their end."""
    died: int | None = None
    """Its exit code, -1 where that is not known."""
    unready: float | None = None
    """The seconds that it had to become ready."""
    unclosed: str = ""
    """Why the network of services could not be closed to others."""
    unproxied: bool = False
    """Whether the proxy of an untrusted job did not start."""


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
        service=fields.get("service", ""),
        died=fields.get("died"),
        unready=fields.get("unready"),
        unclosed=fields.get("unclosed", ""),
        unproxied=bool(fields.get("unproxied")),
    )


def judged(
    outcome: Outcome, facts: ContainerFacts, plan: ContainerPlan, tails: Mapping[str, str] = NO_TAILS
) -> Outcome:
    """Return the outcome of an attempt, given what only the worker's side can know.

    `tails` are the last words of services, which are podman's where a service did not start. The job can change none of
    the facts, so only they lead to the world's reasons.
    """
    if outcome.state in {JobState.FAILED, JobState.TIMED_OUT}:
        if facts.service and facts.unstarted and _CANNOT_RUN.search(tails.get(facts.service, "")):
            return refused(
                f"the image of the service {facts.service!r} has no command that can run; podman's message is in the log"
            )
        if broken := _broken_part(facts):
            return Outcome(state=JobState.ERRORED, reason=Reason.PROVISION_FAILED, detail=broken)
    if outcome.state is not JobState.FAILED or outcome.exit_code is None:
        # It ended for another reason than the end of a step: what ended with it tells nothing.
        return outcome
    return _judged_failure(outcome, facts, plan)


def _judged_failure(outcome: Outcome, facts: ContainerFacts, plan: ContainerPlan) -> Outcome:
    """Return whose failure it was: a service's, or that of the step."""
    if facts.died is not None:
        detail = _died(facts.service, facts.died, outcome.step)
        return replace(outcome, reason=Reason.SERVICE_DIED, exit_code=None, detail=detail)
    if facts.unready is not None:
        detail = f"the service {facts.service!r} was not ready within {facts.unready:g} s"
        return replace(outcome, reason=Reason.SERVICE_NOT_READY, exit_code=None, detail=detail)
    if outcome.step is None and (_was_killed(outcome) or not plan.services):
        # Before the first step only services are the job's. They can kill nothing here, but leave no space for a note.
        return Outcome(
            state=JobState.ERRORED,
            reason=Reason.PROVISION_FAILED,
            detail=f"the process that starts the job's container ended with exit code {outcome.exit_code}",
        )
    if facts.killed:
        return replace(
            outcome,
            reason=Reason.OUT_OF_MEMORY,
            detail=f"out of memory: the job's processes needed more than {plan.memory_bytes / MIB:.0f} MiB",
        )
    if facts.gone:
        return replace(outcome, exit_code=None, detail="the job ended its own container")
    return outcome


def _was_killed(outcome: Outcome) -> bool:
    """Return whether a signal ended the process."""
    return outcome.exit_code is not None and outcome.exit_code > FIRST_OF_SIGNALS


def _broken_part(facts: ContainerFacts) -> str:
    """Return what the container runtime did not do, before the first step."""
    of_service = f" of the service {facts.service!r}" if facts.service else ""
    if facts.unstarted:
        return f"the container{of_service} did not start (exit code {facts.unstarted}); podman's message is in the log"
    if facts.unlimited:
        return f"the container runtime did not set the limit of {facts.unlimited}{of_service}"
    if facts.unclosed:
        return f"the network of the services could not be closed to others: {facts.unclosed}"
    if facts.unproxied:
        return "the proxy to the hosts of UNTRUSTED_EGRESS did not start; its message is in the log"
    return "the start of the container did not end" if facts.starting else ""


def _died(service: str, code: int, step: str | None) -> str:
    ended = f"ended with exit code {code}" if code >= 0 else "ended"
    when = f"during the step {step!r}" if step else "before the first step"
    return f"the service {service!r} {ended} {when}"
