"""Concurrency groups never have two holders, in a table and random sequences."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from solstice_orchestrator.domain.jobs import GroupMode
from solstice_orchestrator.superseding.groups import (
    GroupDecision,
    GroupMember,
    GroupScope,
    ahead_in_group,
    group_key,
    settle_group,
)
from solstice_orchestrator.superseding.seniority import Seniority, seniority
from tests.builders import job_request

QUEUE, CANCEL = GroupMode.QUEUE, GroupMode.CANCEL


def member(
    run: int,
    job: int | None = None,
    *,
    mode: GroupMode = QUEUE,
    holds: bool = False,
    running: bool = False,
) -> GroupMember:
    return GroupMember(
        holder=f"run-{run}" if job is None else f"job-{run}-{job}",
        run_id=f"run-{run}",
        seniority=Seniority(requested_at=float(run), age=run),
        position=job or 0,
        mode=mode,
        holds=holds,
        running=running,
    )


@pytest.mark.parametrize(
    ("members", "new_holder", "superseded"),
    [
        pytest.param([], None, {}, id="nobody"),
        pytest.param([member(1)], "run-1", {}, id="the first gets it"),
        pytest.param([member(1, holds=True), member(2)], None, {}, id="the second waits"),
        pytest.param([member(3), member(2)], "run-2", {}, id="the oldest of those who wait is next"),
        pytest.param([member(2, 1), member(2, 0)], "job-2-0", {}, id="in a run the order of the workflow"),
        pytest.param(
            [member(1, holds=True, running=True), member(2, mode=CANCEL)],
            None,
            {"run-1": "run-2"},
            id="a newer one ends the holder, and waits for its end",
        ),
        pytest.param(
            [member(1, holds=True), member(2, mode=CANCEL)],
            "run-2",
            {"run-1": "run-2"},
            id="a holder that has not started ends at once",
        ),
        pytest.param(
            [member(1, holds=True, running=True), member(2), member(3), member(4, mode=CANCEL)],
            None,
            {"run-1": "run-4", "run-2": "run-4", "run-3": "run-4"},
            id="and all who wait and are older",
        ),
        pytest.param(
            [member(1, mode=CANCEL), member(2, holds=True, mode=CANCEL, running=True)],
            None,
            {"run-1": "run-2"},
            id="an older one that comes late is ended itself",
        ),
        pytest.param(
            [member(1, mode=CANCEL), member(2, holds=True)],
            None,
            {},
            id="an older one does not end a newer one that queues",
        ),
        pytest.param(
            [member(1, mode=CANCEL), member(2, mode=CANCEL), member(3, mode=CANCEL)],
            "run-3",
            {"run-1": "run-3", "run-2": "run-3"},
            id="the newest takes everybody's place",
        ),
        pytest.param(
            [member(1, 0, mode=CANCEL, holds=True, running=True), member(1, 1, mode=CANCEL)],
            None,
            {},
            id="jobs of one run never end each other",
        ),
    ],
)
def test_what_follows_from_who_is_there(
    members: list[GroupMember], new_holder: str | None, superseded: dict[str, str]
) -> None:
    assert settle_group(members) == GroupDecision(new_holder=new_holder, superseded=superseded)


@pytest.mark.parametrize(
    ("holder", "ahead"),
    [("run-3", ["run-5", "run-1", "run-2"]), ("run-1", ["run-5"]), ("run-5", []), ("nobody", [])],
)
def test_ahead_are_the_holder_and_the_older_ones(holder: str, ahead: list[str]) -> None:
    members = [member(3), member(2), member(5, holds=True), member(1), member(4)]
    assert [each.holder for each in ahead_in_group(holder, members)] == ahead


@pytest.mark.parametrize(
    ("scope", "changes", "same"),
    [
        (GroupScope.RUN, {"ref": "refs/heads/spring", "sender": "cleo"}, True),
        (GroupScope.RUN, {"change_number": 7, "trusted": True}, True),
        (GroupScope.JOB, {}, False),
        (GroupScope.RUN, {"source": "gitea"}, False),
        (GroupScope.RUN, {"repo_url": "https://forge.example/other.git"}, False),
        (GroupScope.RUN, {"trusted": False, "change_number": 7}, False),
        (GroupScope.RUN, {"trusted": None}, False),
    ],
    ids=["the same", "a change of ours", "jobs", "forge", "repository", "a stranger", "perhaps a stranger"],
)
def test_a_group_is_its_repository_s_own(scope: GroupScope, changes: dict[str, object], same: bool) -> None:
    own_key = group_key(GroupScope.RUN, job_request(), "deploy")
    assert (group_key(scope, job_request(**changes), "deploy") == own_key) is same


def test_each_stranger_has_groups_of_their_own() -> None:
    strangers = [
        job_request(trusted=False, change_number=7, head_repo_url="https://forge.example/otter/a.git"),
        job_request(trusted=False, change_number=8, head_repo_url="https://forge.example/otter/a.git"),
        job_request(trusted=False, change_number=9, head_repo_url="https://forge.example/heron/a.git"),
        job_request(trusted=False, change_number=10),
    ]
    keys = [group_key(GroupScope.RUN, each, "deploy") for each in strangers]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_a_request_from_the_future_is_as_old_as_its_arrival() -> None:
    assert seniority(9e9, 100.0, 7) == Seniority(requested_at=100.0, age=7)
    assert seniority(50.0, 100.0, 7) < seniority(60.0, 90.0, 3)
    assert seniority(50.0, 100.0, 3) < seniority(50.0, 100.0, 7)


class Groups(RuleBasedStateMachine):
    """Runs with up to three jobs request one group, start, end, and are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, GroupMember] = {}
        self.cancelled: set[str] = set()

    @rule(run=st.integers(1, 9), job=st.one_of(st.none(), st.integers(0, 2)), mode=st.sampled_from(GroupMode))
    def ask(self, run: int, job: int | None, mode: GroupMode) -> None:
        new = member(run, job, mode=mode)
        if new.holder not in self.members:
            self.members[new.holder] = new
            self.settle()

    @precondition(lambda self: any(each.holds and not each.running for each in self.members.values()))
    @rule()
    def start(self) -> None:
        holder = next(each for each in self.members.values() if each.holds and not each.running)
        self.members[holder.holder] = replace(holder, running=True)

    @precondition(lambda self: any(each.holds for each in self.members.values()))
    @rule()
    def end(self) -> None:
        holder = next(each for each in self.members.values() if each.holds)
        del self.members[holder.holder]
        self.settle()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Cancel a member that does not run."""
        gone = data.draw(st.sampled_from(sorted(self.members)))
        if not self.members[gone].running:
            del self.members[gone]
            self.settle()

    def settle(self) -> None:
        """Act as a store: runs without running jobs end, the others are asked to."""
        settled = settle_group(list(self.members.values()))
        for holder in settled.superseded:
            if not self.members[holder].running:
                del self.members[holder]
        if settled.new_holder is not None:
            self.members[settled.new_holder] = replace(self.members[settled.new_holder], holds=True)

    @invariant()
    def there_is_never_a_second_holder(self) -> None:
        assert sum(each.holds for each in self.members.values()) <= 1

    @invariant()
    def the_group_never_idles_while_a_member_waits(self) -> None:
        assert not self.members or any(each.holds for each in self.members.values())

    @invariant()
    def settling_again_changes_nothing(self) -> None:
        settled = settle_group(list(self.members.values()))
        assert settled.new_holder is None
        assert all(self.members[holder].running for holder in settled.superseded)


Groups.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestGroups = Groups.TestCase
