"""Each job in a control group of its own: real groups of this machine, in a hierarchy that is mounted if none is."""

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
from solstice_orchestrator.processes.control_groups import ControlGroup
from solstice_orchestrator.worker.workspaces import open_workspaces
from tests.lab import AS_NOBODY, GROUPS, MAY_BE_NOBODY, NOBODY, PROC, Lab, naps, sleeping
from tests.repositories import Repository

HIDES = """
(env -i /usr/bin/setsid /bin/sh -c '/usr/bin/env -i /usr/bin/setsid /bin/sleep {nap} & :' >/dev/null 2>&1 </dev/null &)
until pgrep -f -x '/bin/sleep {nap}' >/dev/null; do sleep 0.01; done
"""
"""Forks twice, with an empty environment, and leaves its session."""
KILLS = HIDES + "kill -9 $PPID; sleep 60"


def groups_of(group: Path) -> list[str]:
    return sorted(path.name for path in group.iterdir() if path.is_dir())


@PROC
@GROUPS
async def test_nothing_is_left_of_a_job_that_hides_and_kills_its_supervisor(lab: Lab) -> None:
    """This process is no subreaper: what lost its supervisor is a child of init."""
    assert lab.workspaces.group is not None
    nap = naps()
    outcome = await lab.run(KILLS.format(nap=nap))
    assert outcome.state is JobState.FAILED
    assert sleeping(nap) == set()
    assert groups_of(lab.workspaces.group.path) == []


@PROC
@GROUPS
async def test_groups_that_a_job_makes_within_its_own_are_ended_and_removed(lab: Lab) -> None:
    assert lab.workspaces.group is not None
    nap, group = naps(), lab.workspaces.group.path
    within = f"""
        own=$(dirname $(find {group} -name cgroup.procs -exec grep -lx $$ {{}} +))
        test $own != {group}
        mkdir -p $own/a/b
        sleep {nap} & echo $! > $own/a/b/cgroup.procs
        echo within; kill -9 $PPID; sleep 60
    """
    await lab.run(within)
    assert "within" in lab.text
    assert sleeping(nap) == set()
    assert groups_of(group) == []


@PROC
@GROUPS
async def test_what_hid_from_an_orchestrator_that_was_killed_is_ended_by_the_next(
    tmp_path: Path, repository: Repository
) -> None:
    nap, work = naps(), tmp_path / "work"
    sha = repository.commit({"x": "y"})
    # The orchestrator does not hear of it any more: it is stopped, and dies of SIGKILL.
    kills = "ABOVE=$(ps -o ppid= -p $PPID); kill -STOP $ABOVE; kill -9 $PPID; kill -9 $ABOVE; sleep 60"
    peer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.orchestrator.process_peer"),
        *(str(work), repository.url, sha, HIDES.format(nap=nap) + kills),
    )
    assert await peer.wait() == -9
    assert sleeping(nap)
    async with open_workspaces(work):
        assert sleeping(nap) == set()
    assert list(work.iterdir()) == []


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a repository, both nobody's, outside of those of pytest, which are root's."""
    with tempfile.TemporaryDirectory() as name:
        Repository(Path(name) / "repository").commit({"x": "y"})
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", name], check=True)
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
async def delegated(hierarchy: ControlGroup) -> AsyncIterator[Path]:
    """A control group that belongs to nobody."""
    group = hierarchy.below(f"test-{os.getpid()}")
    if group is None:
        pytest.skip(f"not asked for: no control group may be made in {hierarchy.path}")
    for name in (".", "cgroup.procs", "cgroup.subtree_control"):
        os.chown(group.path / name, NOBODY, NOBODY)
    yield group.path
    assert await group.end()


async def peer_of_nobody(place: Path, script: str, group: Path) -> "asyncio.subprocess.Process":
    """An executor in that control group that runs a job as nobody."""
    url = f"file://{place}/repository"
    sha = (place / "repository/.git/refs/heads/main").read_text().strip()
    return await asyncio.create_subprocess_exec(
        *(
            "/bin/sh",
            "-c",
            f'echo 0 > {group}/cgroup.procs; exec "$@"',
            "sh",
            *AS_NOBODY,
            sys.executable,
            "-m",
        ),
        *("tests.integration.orchestrator.process_peer", str(place / "work"), url, sha, script),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "HOME": str(place)},
    )


@PROC
@MAY_BE_NOBODY
async def test_a_user_to_whom_a_group_is_delegated_makes_groups_in_it(place: Path, delegated: Path) -> None:
    nap = naps()
    script = "cat /proc/self/cgroup" + KILLS.format(nap=nap)
    peer = await peer_of_nobody(place, script, delegated)
    assert peer.stdout is not None
    said = (await peer.stdout.read()).decode()
    assert "control_groups.used" in said
    assert f"/{delegated.name}/solstice-" in said
    assert "ended failed step_failed" in said
    assert sleeping(nap) == set()
    assert groups_of(delegated) == []


@PROC
@MAY_BE_NOBODY
async def test_a_job_that_leaves_its_group_is_found_by_its_parents(place: Path, delegated: Path) -> None:
    nap = naps()
    leaves = f"echo 0 > {delegated}/cgroup.procs; cat /proc/self/cgroup"
    script = leaves + KILLS.format(nap=nap)
    peer = await peer_of_nobody(place, script, delegated)
    assert peer.stdout is not None
    said = (await peer.stdout.read()).decode()
    assert f"/{delegated.name}\n" in said
    assert "ended failed step_failed" in said
    assert sleeping(nap) == set()


@PROC
@MAY_BE_NOBODY
async def test_where_no_group_may_be_made_jobs_run_and_end_all_the_same(place: Path, delegated: Path) -> None:
    nap = naps()
    for name in (".", "cgroup.procs"):
        os.chown(delegated / name, 0, 0)
    script = KILLS.format(nap=nap)
    peer = await peer_of_nobody(place, script, delegated)
    assert peer.stdout is not None
    said = (await peer.stdout.read()).decode()
    assert "control_groups.unused" in said
    assert "Permission denied" in said
    assert "ended failed step_failed" in said
    assert sleeping(nap) == set()


@PROC
@MAY_BE_NOBODY
async def test_a_group_into_which_no_process_may_be_moved_is_not_used(place: Path, delegated: Path) -> None:
    os.chown(delegated / "cgroup.procs", 0, 0)
    peer = await peer_of_nobody(place, "cat /proc/self/cgroup", delegated)
    assert peer.stdout is not None
    said = (await peer.stdout.read()).decode()
    assert "control_groups.unused" in said
    assert "no process may be moved" in said
    assert "ended succeeded completed" in said
    assert groups_of(delegated) == []
