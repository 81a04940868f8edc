"""Whose failure the end of a VM was."""

import json

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.worker.executors.vms.vm_facts import (
    VmFacts,
    has_crashed,
    judged,
    read_vm_facts,
)
from solstice_orchestrator.worker.executors.vms.vm_plan import MIB, VmPlan
from tests.unit.orchestrator.worker.executors.vms.test_vm_plan import IMAGE

PLAN = VmPlan(label="linux", image=IMAGE, has_network=False, memory_bytes=64 * MIB, cpus=1)
BROKEN = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=1, step="build")
UNBEGUN = Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, exit_code=137)
LATE = Outcome(state=JobState.TIMED_OUT, reason=Reason.JOB_TIMEOUT)
DONE = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)
STOPPED = Outcome(state=JobState.CANCELLED, reason=Reason.CANCEL_REQUESTED)


@pytest.mark.parametrize(
    ("outcome", "facts", "reason", "sentence"),
    [
        (BROKEN, {}, Reason.STEP_FAILED, ""),
        (BROKEN, {"starting": True}, Reason.PROVISION_FAILED, "did not end"),
        (LATE, {"starting": True}, Reason.PROVISION_FAILED, "did not end"),
        (UNBEGUN, {"starting": True}, Reason.PROVISION_FAILED, "did not end"),
        (UNBEGUN, {}, Reason.PROVISION_FAILED, "was killed"),
        (BROKEN, {"unready": "it hangs"}, Reason.PROVISION_FAILED, "it hangs"),
        (BROKEN, {"unready": "x", "words": "a\nno image"}, Reason.PROVISION_FAILED, "of QEMU: no image"),
        (BROKEN, {"unready": "x", "console": "a\npanic\nb"}, Reason.PROVISION_FAILED, "its console: panic"),
        (BROKEN, {"unready": "no space", "full": True}, Reason.MACHINE_FAILED, "no space"),
        (STOPPED, {"starting": True}, Reason.CANCEL_REQUESTED, ""),
        (BROKEN, {"gone": 0}, Reason.STEP_FAILED, "the job ended its own VM"),
        (BROKEN, {"gone": 1, "words": "oops"}, Reason.STEP_FAILED, "the last words of QEMU: oops"),
        (BROKEN, {"gone": -9}, Reason.EXECUTOR_FAILED, "killed by signal 9"),
        (BROKEN, {"gone": -6}, Reason.STEP_FAILED, "the job ended its own VM"),
        (BROKEN, {"gone": -11}, Reason.STEP_FAILED, "the job ended its own VM"),
        (BROKEN, {"lost": True}, Reason.EXECUTOR_FAILED, "was killed"),
        (BROKEN, {"killed": 2}, Reason.OUT_OF_MEMORY, "64 MiB"),
        (LATE, {"gone": 0}, Reason.JOB_TIMEOUT, ""),
        (DONE, {"killed": 2}, Reason.COMPLETED, ""),
    ],
)
def test_the_world_fails_only_by_what_this_side_saw(
    outcome: Outcome, facts: dict[str, object], reason: Reason, sentence: str
) -> None:
    ended = judged(outcome, read_vm_facts(json.dumps(facts)), PLAN)
    assert ended.reason is reason
    assert sentence in ended.detail


def test_a_qemu_that_needs_too_much_memory_is_the_jobs_failure() -> None:
    facts = VmFacts(gone=-9, starved=True)
    assert judged(BROKEN, facts, PLAN).reason is Reason.OUT_OF_MEMORY


def test_facts_that_found_no_room_are_none() -> None:
    assert judged(BROKEN, read_vm_facts(""), PLAN) == BROKEN
    assert judged(BROKEN, read_vm_facts("{"), PLAN) == BROKEN
    assert judged(UNBEGUN, read_vm_facts(""), PLAN).reason is Reason.PROVISION_FAILED


def test_a_crash_of_qemu_is_told_to_operators() -> None:
    assert has_crashed(read_vm_facts('{"gone": -6}'))
    assert not has_crashed(read_vm_facts('{"gone": -9}'))
    assert not has_crashed(read_vm_facts('{"gone": 0}'))
