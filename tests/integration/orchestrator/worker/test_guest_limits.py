"""The limits of containers in a guest whose kernel has control groups of version 2."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from solstice_cli.demo.local_images import pack
from tests.container_jobs import MEMORY, PROCESSES
from tests.escapes import CONTROL, succeeded
from tests.integration.orchestrator.worker.guest_enclosures import LIMITS, RESULT
from tests.integration.orchestrator.worker.guest_jobs import CPUS, GROUP, HOMES, USER
from tests.servers.podman import IMAGE, PROGRAMS, configured_store, podman_is_installed
from tests.servers.qemu_guest import run_in_guest, why_no_guest

CHECKOUT = Path(__file__).parents[4]
SECONDS = 900.0
"""For a guest whose processors are simulated, on a busy machine."""
KNOWN_SECONDS = 20.0
"""How long a busy one may take to know that a job had not enough memory."""
ROOTLESS = os.environ.get("SOLSTICE_TEST_ROOTLESS") == "1"
"""Whether the contract of executors is tested without root, too."""
ROOTLESS_SECONDS = 3600.0
PREPARE = """
cd {checkout}
export PATH={path} PYTHONPATH={modules} PYTHONDONTWRITEBYTECODE=1
cp {archive} /mnt/image.tar
mkdir -p /mnt/etc /mnt/root/tmp /mnt/root/podman /mnt/user/tmp /run/user/{user} {group}
cp -a {images} /mnt/root/podman/graph
chown -R {user}:{user} /mnt/user /run/user/{user}
# `podman info` asks dpkg to which package each of its programs belongs, and that reads a file of every package.
mount -t tmpfs none /var/lib/dpkg
# Root's podman locks a file there where netavark is installed. The import outside has made the folder.
test ! -d /etc/containers/networks || mount -t tmpfs none /etc/containers/networks
for each in passwd group subuid subgid; do
    cp /etc/$each /mnt/etc/$each
    case $each in
        sub*) echo user:100000:65536 ;;
        passwd) echo user:x:{user}:{user}::/mnt/user:/bin/sh ;;
        *) echo user:x:{user}: ;;
    esac >> /mnt/etc/$each
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
cd {group} && chown {user}:{user} . cgroup.procs cgroup.subtree_control && cd -
"""
PROGRAM = "tests.integration.orchestrator.worker.guest_program"
USERS = tuple(HOMES) if ROOTLESS else (USER,)
"""Whose jobs reach their limits. With control groups of version 1, those of root are tested on the machine itself."""
JOBS = f"exec {{python}} -m {{program}} /mnt/image.tar {' '.join(map(str, USERS))}"
VM_LIMITS = f"exec {{python}} -m {{program}} limits {' '.join(map(str, HOMES))}"
CONTRACT = """
echo 0 > {group}/cgroup.procs
export HOME=/mnt/user TMPDIR=/mnt/user/tmp XDG_RUNTIME_DIR=/run/user/{user} SOLSTICE_TEST_ROOTLESS=user
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 HYPOTHESIS_STORAGE_DIRECTORY=/mnt/user/hypothesis
exec setpriv --reuid={user} --regid={user} --clear-groups \\
    {python} -m {program} pytest -v {options}
"""
CONTRACT_OPTIONS = (
    *("--no-header", "--color=no", "-p", "no:cacheprovider", "-o", "timeout=900"),
    # Only the plugins that it needs: each of the others has hundreds of modules to import.
    *("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout"),
    *("-k", "podman", "tests/contract/test_executor.py"),
)


def written_in_guest(folder: Path, script_end: str, seconds: float = SECONDS) -> str:
    """What a script wrote in the guest."""
    # For root in a store of the machine itself: in the guest an import takes long. A user's podman finds no image in a copy.
    store = configured_store(folder / "podman", "vfs")
    pack(folder / "image.tar", PROGRAMS)
    store.run("import", "--quiet", str(folder / "image.tar"), IMAGE)
    # What podman remembers beside images names the places of that store.
    shutil.rmtree(folder / "podman" / "graph" / "libpod")
    script = folder / "script"
    script.write_text(
        (PREPARE + script_end).format(
            checkout=shlex.quote(str(CHECKOUT)),
            path=shlex.quote(os.environ["PATH"]),
            modules=shlex.quote(os.pathsep.join(filter(None, sys.path))),
            python=shlex.quote(sys.executable),
            archive=shlex.quote(str(folder / "image.tar")),
            images=shlex.quote(str(folder / "podman" / "graph")),
            program=PROGRAM,
            options=shlex.join(CONTRACT_OPTIONS),
            closed=shlex.join(map(str, closed_folders())),
            user=USER,
            group=GROUP,
        )
    )
    return run_in_guest(script, seconds=seconds)


def closed_folders() -> list[Path]:
    """The folders above Python and this checkout that other users may not enter."""
    used = {CHECKOUT, Path(sys.executable), Path(sys.executable).resolve(), Path(sys.base_prefix)}
    above = {parent for path in used for parent in (path, *path.parents) if parent.is_dir()}
    return sorted(path for path in above if path.stat().st_mode & 0o005 != 0o005)


@pytest.mark.timeout(SECONDS + 60)
def test_memory_processes_and_processors_of_a_job_are_limited_with_control_groups_of_version_2(
    tmp_path: Path,
) -> None:
    skip_without_guest()
    written = written_in_guest(tmp_path, JOBS)
    print(written)  # noqa: T201  for the report of a failure
    found = results(written)
    for user in USERS:
        facts = found.get(user)
        assert facts, f"nothing of user {user}"
        assert (facts["state"], facts["reason"], facts["exit_code"]) == ("failed", "out_of_memory", 3), facts
        assert "64 MiB" in facts["detail"]
        assert facts["left"] == []
        assert f"limits {MEMORY} 0 {PROCESSES} {CPUS * 100_000:.0f} 100000\n" in facts["text"]
        # A stranger's: its proxy is in its network, with the rights of this user alone.
        assert "proxy HTTP/1.1 403 Forbidden" in facts["text"]
        used = numbers(facts["text"])
        assert used["throttled"] > 0
        # Its share, and what one period of 0.1 s may add.
        assert used["used"] < CPUS * used["elapsed"] + 100_000
        assert "fork" in facts["text"]
        assert used["refused"] > 0
        assert succeeded(facts["text"]) == ([CONTROL] if user else [])
        # Nothing here waits for a clock between the end of a process for lack of memory and the outcome. Simulated
        # processors are up to thirty times slower than those of a machine, which tests of containers hold to two seconds.
        (known,) = facts["known"]
        assert known - used["killed"] / 1e6 < KNOWN_SECONDS


@pytest.mark.timeout(ROOTLESS_SECONDS + 60)
def test_executors_keep_their_contract_without_root(tmp_path: Path) -> None:
    # With simulated processors it takes too long for each run of the tests.
    if not ROOTLESS:
        pytest.skip("not asked for: SOLSTICE_TEST_ROOTLESS=1 asks for it")
    skip_without_guest()
    tests = contract_tests()
    written = written_in_guest(tmp_path, CONTRACT, ROOTLESS_SECONDS)
    print(written)  # noqa: T201  for the report of a failure, and for a reader of a run with -s
    (last,) = re.findall(r"^=+ (.* in [\d.]+s .*)=+$", written, re.MULTILINE)
    assert f"{len(tests)} passed" in last
    assert not re.search("failed|error|skipped", last)


@pytest.mark.timeout(SECONDS + 60)
def test_the_memory_of_qemu_is_limited_with_control_groups_of_version_2(tmp_path: Path) -> None:
    # Control groups of one version or the other are tested on the machine itself, and a guest takes a minute more.
    if not ROOTLESS:
        pytest.skip("not asked for: SOLSTICE_TEST_ROOTLESS=1 asks for it")
    skip_without_guest()
    written = written_in_guest(tmp_path, VM_LIMITS)
    print(written)  # noqa: T201  for the report of a failure
    found = results(written)
    for user in HOMES:
        facts = found.get(user)
        assert facts, f"nothing of user {user}"
        assert {"memory", "cpu", "pids"} <= set(facts["bounds"]), facts
        within, beyond = facts["ends"]["within"], facts["ends"]["beyond"]
        assert (within["code"], within["has_lacked_memory"]) == (0, False), within
        assert (beyond["code"], beyond["has_lacked_memory"]) == (-9, True), beyond
        assert within["limit"] == beyond["limit"] == [str(LIMITS.memory_bytes)]
        assert within["left"] == beyond["left"] == []


def contract_tests() -> list[str]:
    """The tests of the contract that a guest runs.

    Their collection also leaves their compiled modules, which the guest can read and not write.
    """
    command = [sys.executable, "-m", PROGRAM, "pytest", "--collect-only", "-q", *CONTRACT_OPTIONS]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    collected = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [line for line in collected.splitlines() if "::" in line]


def skip_without_guest() -> None:
    # On Debian as root both are installed, so that CI runs these tests; elsewhere a machine may have neither.
    if not podman_is_installed():
        pytest.skip("not asked for: there is no podman, and none can be installed")
    if missing := why_no_guest():
        pytest.skip(f"not asked for: there is no guest with control groups of version 2, since {missing}")


def results(written: str) -> dict[int, dict[str, Any]]:
    """What each user's process printed."""
    lines = (line.partition(RESULT)[2] for line in written.splitlines())
    found = [json.loads(line) for line in lines if line]
    return {facts["user"]: facts for facts in found}


def numbers(text: str) -> dict[str, int]:
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
