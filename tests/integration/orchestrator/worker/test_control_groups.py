"""Each job runs in a real control group, in a hierarchy mounted if needed."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.processes.control_groups import ControlGroup, sweep_empty
from solstice_orchestrator.worker.workspaces import open_workspaces
from tests.executor_harness import (
    AS_OTHER_USER,
    GROUPS,
    NEEDS_OTHER_USER,
    NEEDS_PROC,
    NOBODY_UID,
    ExecutorHarness,
    processes_sleeping,
    unique_sleep,
)
from tests.repositories import Repository

HIDES = """
(env -i /usr/bin/setsid /bin/sh -c '/usr/bin/env -i /usr/bin/setsid /bin/sleep {seconds_asleep} & :' >/dev/null 2>&1 </dev/null &)
until pgrep -f -x '/bin/sleep {seconds_asleep}' >/dev/null; do sleep 0.01; done
"""
"""Forks twice, with an empty environment, and leaves its session."""
KILLS = HIDES + "kill -9 $PPID; sleep 60"


def groups_of(group: Path) -> list[str]:
    return sorted(path.name for path in group.iterdir() if path.is_dir())


@NEEDS_PROC
@GROUPS
async def test_nothing_is_left_of_a_job_that_hides_and_kills_its_supervisor(harness: ExecutorHarness) -> None:
    """This process is no subreaper: a process without its supervisor is a child of init."""
    assert harness.workspaces.group is not None
    seconds_asleep = unique_sleep()
    outcome = await harness.run(KILLS.format(seconds_asleep=seconds_asleep))
    assert outcome.state is JobState.FAILED
    assert processes_sleeping(seconds_asleep) == set()
    assert groups_of(harness.workspaces.group.path) == []


@NEEDS_PROC
@GROUPS
async def test_groups_that_a_job_makes_within_its_own_are_ended_and_removed(harness: ExecutorHarness) -> None:
    assert harness.workspaces.group is not None
    seconds_asleep, group = unique_sleep(), harness.workspaces.group.path
    within = f"""
        own=$(dirname $(find {group} -name cgroup.procs -exec grep -lx $$ {{}} +))
        test $own != {group}
        mkdir -p $own/a/b
        sleep {seconds_asleep} & echo $! > $own/a/b/cgroup.procs
        echo within; kill -9 $PPID; sleep 60
    """
    await harness.run(within)
    assert "within" in harness.text
    assert processes_sleeping(seconds_asleep) == set()
    assert groups_of(group) == []


@NEEDS_PROC
@GROUPS
async def test_what_hid_from_an_orchestrator_that_was_killed_is_ended_by_the_next(
    tmp_path: Path, repository: Repository
) -> None:
    seconds_asleep, work = unique_sleep(), tmp_path / "work"
    sha = repository.commit({"x": "y"})
    # The orchestrator does not notice: it is stopped, and dies of SIGKILL.
    kills = "ABOVE=$(ps -o ppid= -p $PPID); kill -STOP $ABOVE; kill -9 $PPID; kill -9 $ABOVE; sleep 60"
    peer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.orchestrator.worker.process_peer"),
        *(str(work), repository.url, sha, HIDES.format(seconds_asleep=seconds_asleep) + kills),
    )
    assert await peer.wait() == -9
    assert processes_sleeping(seconds_asleep)
    async with open_workspaces(work):
        assert processes_sleeping(seconds_asleep) == set()
    assert list(work.iterdir()) == []


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the user nobody with a repository, outside of pytest's folders."""
    with tempfile.TemporaryDirectory() as name:
        Repository(Path(name) / "repository").commit({"x": "y"})
        subprocess.run(["chown", "-R", f"{NOBODY_UID}:{NOBODY_UID}", name], check=True)
        yield Path(name)


@pytest.fixture
def hierarchy() -> Iterator[ControlGroup]:
    """Where control groups are mounted, or are mounted for this."""
    found = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup2 " in line]
    with ExitStack() as stack:
        if not found:
            found = [stack.enter_context(tempfile.TemporaryDirectory())]
            if subprocess.run(["mount", "-t", "cgroup2", "none", *found], check=False).returncode:
                pytest.skip("not asked for: this kernel mounts no control groups of version 2")
            stack.callback(subprocess.run, ["umount", *found], check=True)
        yield ControlGroup(Path(found[0]))


@pytest.fixture
async def own_group(hierarchy: ControlGroup) -> AsyncIterator[ControlGroup]:
    """A real control group, in which others may be made."""
    group = hierarchy.below(f"test-{os.getpid()}")
    if group is None:
        pytest.skip(f"not asked for: no control group may be made in {hierarchy.path}")
    yield group
    assert await group.end()


OWNS = """
import asyncio, sys
from pathlib import Path
from solstice_orchestrator.processes import control_groups
control_groups.own_group = lambda: Path(sys.argv[1])
async def main():
    async with control_groups.open_group("owned") as group:
        assert group.below("attempt")
        print(flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@NEEDS_PROC
@GROUPS
async def test_empty_groups_are_swept_once_their_owner_is_gone(own_group: ControlGroup) -> None:
    """Not those with a process, nor those of others."""
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNS, str(own_group.path)), stdout=asyncio.subprocess.PIPE
    )
    left, busy, foreign = (own_group.below(name) for name in ("solstice-left", "solstice-busy", "foreign"))
    assert left is not None
    assert busy is not None
    assert foreign is not None
    assert left.below("attempt")
    sleeper = await asyncio.create_subprocess_exec("sleep", unique_sleep())
    try:
        (busy.path / "cgroup.procs").write_text(str(sleeper.pid))
        assert owner.stdout is not None
        assert await owner.stdout.readline()
        # The owner itself swept `left` at its start.
        assert groups_of(own_group.path) == ["foreign", "solstice-busy", "solstice-owned"]
        assert sweep_empty(own_group.path) == 0
    finally:
        owner.kill()
        await owner.wait()
        sleeper.kill()
        await sleeper.wait()
    assert sweep_empty(own_group.path) == 2
    assert groups_of(own_group.path) == ["foreign"]


@pytest.fixture
async def delegated(hierarchy: ControlGroup) -> AsyncIterator[Path]:
    """A control group that belongs to the user nobody."""
    group = hierarchy.below(f"test-{os.getpid()}")
    if group is None:
        pytest.skip(f"not asked for: no control group may be made in {hierarchy.path}")
    for name in (".", "cgroup.procs", "cgroup.subtree_control"):
        os.chown(group.path / name, NOBODY_UID, NOBODY_UID)
    yield group.path
    assert await group.end()


async def output_as_other_user(place: Path, script: str, group: Path) -> str:
    """The output of a job that an executor in that group runs as `nobody`."""
    url = f"file://{place}/repository"
    sha = (place / "repository/.git/refs/heads/main").read_text().strip()
    peer = await asyncio.create_subprocess_exec(
        *(
            "/bin/sh",
            "-c",
            f'echo 0 > {group}/cgroup.procs; exec "$@"',
            "sh",
            *AS_OTHER_USER,
            sys.executable,
            "-m",
        ),
        *("tests.integration.orchestrator.worker.process_peer", str(place / "work"), url, sha, script),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "HOME": str(place)},
    )
    return (await peer.communicate())[0].decode()


@NEEDS_PROC
@NEEDS_OTHER_USER
async def test_a_user_to_whom_a_group_is_delegated_makes_groups_in_it(place: Path, delegated: Path) -> None:
    seconds_asleep = unique_sleep()
    script = "cat /proc/self/cgroup" + KILLS.format(seconds_asleep=seconds_asleep)
    output = await output_as_other_user(place, script, delegated)
    assert "control_groups.used" in output
    assert f"/{delegated.name}/solstice-" in output
    assert "ended failed step_failed" in output
    assert processes_sleeping(seconds_asleep) == set()
    assert groups_of(delegated) == []


@NEEDS_PROC
@NEEDS_OTHER_USER
async def test_a_job_that_leaves_its_group_is_found_by_its_parents(place: Path, delegated: Path) -> None:
    seconds_asleep = unique_sleep()
    leaves = f"echo 0 > {delegated}/cgroup.procs; cat /proc/self/cgroup"
    script = leaves + KILLS.format(seconds_asleep=seconds_asleep)
    output = await output_as_other_user(place, script, delegated)
    assert f"/{delegated.name}\n" in output
    assert "ended failed step_failed" in output
    assert processes_sleeping(seconds_asleep) == set()


@NEEDS_PROC
@NEEDS_OTHER_USER
async def test_where_no_group_may_be_made_jobs_run_and_end_nevertheless(place: Path, delegated: Path) -> None:
    seconds_asleep = unique_sleep()
    for name in (".", "cgroup.procs"):
        os.chown(delegated / name, 0, 0)
    script = KILLS.format(seconds_asleep=seconds_asleep)
    output = await output_as_other_user(place, script, delegated)
    assert "control_groups.unused" in output
    assert "Permission denied" in output
    assert "ended failed step_failed" in output
    assert processes_sleeping(seconds_asleep) == set()


@NEEDS_PROC
@NEEDS_OTHER_USER
async def test_a_group_into_which_no_process_may_be_moved_is_not_used(place: Path, delegated: Path) -> None:
    os.chown(delegated / "cgroup.procs", 0, 0)
    output = await output_as_other_user(place, "cat /proc/self/cgroup", delegated)
    assert "control_groups.unused" in output
    assert "no process may be moved" in output
    assert "ended succeeded completed" in output
    assert groups_of(delegated) == []
