"""Closed lists in stores, API and metrics have each member by its name."""

from enum import StrEnum

import pytest

from solstice_orchestrator.domain.jobs import GroupMode, JobCondition, Reason
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.queue_times.forecast import ForecastAccuracy
from solstice_orchestrator.queue_times.waits import WaitReason
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.scheduling.governor import Resource
from solstice_orchestrator.scheduling.rates import BucketScope
from solstice_orchestrator.scheduling.workers import DesiredWorkerState, OrderRefusal, Presence, WorkerState
from solstice_orchestrator.superseding.groups import GroupScope
from solstice_orchestrator.superseding.policy import SupersedeRule


@pytest.mark.parametrize(
    "closed",
    [
        BucketScope,
        DesiredWorkerState,
        ForecastAccuracy,
        GroupMode,
        GroupScope,
        JobCondition,
        OrderRefusal,
        Presence,
        Reason,
        RerunRefusal,
        Resource,
        SupersedeRule,
        TickReason,
        TickState,
        WaitReason,
        WorkerState,
    ],
)
def test_a_member_is_written_as_it_is_named(closed: type[StrEnum]) -> None:
    assert [each.value for each in closed] == [each.name.lower() for each in closed]
