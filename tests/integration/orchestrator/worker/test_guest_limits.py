"""The limits of containers in a guest whose kernel has control groups of version 2."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.container_jobs import MEMORY, PROCESSES
from tests.integration.orchestrator.worker.guest_jobs import RESULT
from tests.servers.podman import pack, podman_is_installed
from tests.servers.qemu_guest import run_in_guest, why_no_guest

CHECKOUT = Path(__file__).parents[4]
SECONDS = 600.0
"""For a guest whose processors are simulated, on a busy machine."""
SCRIPT = """
cd {checkout}
export PATH={path} PYTHONPATH={modules} PYTHONDONTWRITEBYTECODE=1
cp {archive} /mnt/image.tar
jobs="{python} -m tests.integration.orchestrator.worker.guest_jobs /mnt/image.tar"
mkdir -p /mnt/root/tmp

mkdir -p /mnt/etc /mnt/user/tmp /run/user/2000 /sys/fs/cgroup/user
chown -R 2000:2000 /mnt/user /run/user/2000
for each in passwd group subuid subgid; do
    cp /etc/$each /mnt/etc/$each
    case $each in sub*) echo user:100000:65536 ;; passwd) echo user:x:2000:2000::/mnt/user:/bin/sh ;; *) echo user:x:2000: ;; esac >> /mnt/etc/$each
    mount --bind /mnt/etc/$each /etc/$each
done
for each in {closed}; do
    if [ ! -w $each ] || ! chmod o+rx $each; then
        mkdir -p /mnt/over$each.upper /mnt/over$each.work
        mount -t overlay -o lowerdir=$each,upperdir=/mnt/over$each.upper,workdir=/mnt/over$each.work overlay $each
        chmod o+rx $each
    fi
done
echo '+cpu +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
cd /sys/fs/cgroup/user && chown 2000:2000 . cgroup.procs cgroup.subtree_control && cd -
HOME=/mnt/root TMPDIR=/mnt/root/tmp $jobs memory processes &
( echo 0 > /sys/fs/cgroup/user/cgroup.procs
  export HOME=/mnt/user TMPDIR=/mnt/user/tmp XDG_RUNTIME_DIR=/run/user/2000
  exec setpriv --reuid=2000 --regid=2000 --clear-groups $jobs memory ) &
wait
"""


def written_in_guest(folder: Path) -> str:
    """What jobs in the guest wrote, of root and of another user."""
    pack(folder / "image.tar")
    script = folder / "script"
    script.write_text(
        SCRIPT.format(
            checkout=shlex.quote(str(CHECKOUT)),
            path=shlex.quote(os.environ["PATH"]),
            modules=shlex.quote(os.pathsep.join(filter(None, sys.path))),
            python=shlex.quote(sys.executable),
            archive=shlex.quote(str(folder / "image.tar")),
            closed=shlex.join(map(str, closed_folders())),
        )
    )
    return run_in_guest(script, seconds=SECONDS)


def closed_folders() -> list[Path]:
    """The folders above Python and this checkout that other users may not enter."""
    used = {CHECKOUT, Path(sys.executable), Path(sys.executable).resolve(), Path(sys.base_prefix)}
    above = {parent for path in used for parent in (path, *path.parents) if parent.is_dir()}
    return sorted(path for path in above if path.stat().st_mode & 0o005 != 0o005)


@pytest.mark.timeout(SECONDS + 60)
def test_memory_processes_and_processors_of_a_job_are_limited_with_control_groups_of_version_2(
    tmp_path: Path,
) -> None:
    # On Debian as root both are installed, so that CI runs this; elsewhere a machine may have neither.
    if not podman_is_installed():
        pytest.skip("not asked for: there is no podman, and none can be installed")
    if missing := why_no_guest():
        pytest.skip(f"not asked for: there is no guest with control groups of version 2, since {missing}")
    written = written_in_guest(tmp_path)
    print(written)  # noqa: T201  for the report of a failure
    found = results(written)
    for user in (0, 2000):
        facts = found.get((user, "memory"))
        assert facts, f"nothing of user {user}"
        assert (facts["state"], facts["reason"], facts["exit_code"]) == ("failed", "out_of_memory", 3), facts
        assert "64 MiB" in facts["detail"]
        assert facts["seconds_after_kill"] is not None
        assert f"limits {MEMORY} 0 {PROCESSES} 25000 100000\n" in facts["text"]
        used = numbers(facts["text"])
        assert used["throttled"] > 0
        # A quarter, and what one period of 0.1 s may add.
        assert used["used"] < used["elapsed"] / 4 + 100_000
    facts = found[0, "processes"]
    assert (facts["state"], facts["reason"]) == ("failed", "step_failed"), facts
    assert "fork" in facts["text"]


def results(written: str) -> dict[tuple[int, str], dict[str, Any]]:
    lines = (line.partition(RESULT)[2] for line in written.splitlines())
    found = [json.loads(line) for line in lines if line]
    return {(facts["user"], facts["job"]): facts for facts in found}


def numbers(text: str) -> dict[str, int]:
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
