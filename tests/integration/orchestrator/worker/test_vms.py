"""Jobs in VMs of a real QEMU: what they can do, and how they end."""

import asyncio
import hashlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from solstice_common.errors import ConfigurationError
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec
from solstice_orchestrator.domain.jobs import ArtifactSpec, Reason, StepSpec
from solstice_orchestrator.processes import vm_step
from solstice_orchestrator.processes.supervisor import descendants, process_ids
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from solstice_orchestrator.worker.executors.containers.container_groups import groups_left
from solstice_orchestrator.worker.executors.containers.left_containers import left_containers
from solstice_orchestrator.worker.executors.disk import DiskWatch
from solstice_orchestrator.worker.executors.vms import kvm_trial, qemu_launcher, vm_directory
from solstice_orchestrator.worker.executors.vms.vm_images import INITRAMFS
from solstice_orchestrator.worker.executors.vms.vm_plan import MIB, VmPlan
from solstice_orchestrator.worker.workspaces import open_workspaces
from tests.executor_harness import runs
from tests.polling import wait_until
from tests.servers.vm_image import vm_image, why_no_vm
from tests.vm_jobs import VmJobs, vm_jobs, vm_pids, vm_rules

SECRET = "planted-'in\nthe VM"
ORDER = "for i in $(seq 100); do echo out-$i; echo err-$i >&2; done"
FACTS = """
cat hello.txt; pwd; echo $SOLSTICE_STEP; id -u; echo "path $PATH"
echo "interfaces $(ls /sys/class/net | tr '\\n' ' ')"; echo "processors $(nproc)"
grep MemTotal /proc/meminfo
echo by name >/dev/stderr
trap 'echo interrupted' INT; kill -INT $$
mkdir -p /tmp/kept; (sleep 1000 &)
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # On Debian as root QEMU is installed, so that CI runs this; elsewhere a machine may have none.
    if missing := why_no_vm():
        pytest.skip(f"not asked for: there is no VM, since {missing}")
    return vm_image(tmp_path_factory.mktemp("vm") / "image")


@pytest.fixture(scope="module")
def image_with_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # On Debian as root QEMU is installed, so that CI runs this; elsewhere a machine may have none.
    if missing := why_no_vm():
        pytest.skip(f"not asked for: there is no VM, since {missing}")
    return vm_image(tmp_path_factory.mktemp("vm") / "image", disk=True)


@pytest.fixture
async def jobs(image: Path, tmp_path: Path) -> AsyncIterator[VmJobs]:
    async with vm_jobs(image, tmp_path) as opened:
        yield opened


async def test_steps_share_one_vm_with_the_commit_and_one_log_in_order(jobs: VmJobs) -> None:
    outcome = await jobs.run(
        FACTS,
        StepSpec(
            name="it's",
            run=f'ls /tmp\n{ORDER}\nprintf "<%s>\\n" "$QUOTED" "$TOKEN"\nprintf "no end"',
            env={"QUOTED": "a'b\"c\n$(id)`id` é", "LD_PRELOAD": "/nowhere.so"},
            secrets=("TOKEN",),
        ),
        'ps | grep -c "[s]leep 1000"; [ -z "${TOKEN-}" ] && echo no secret; false\necho never',
        secrets={"TOKEN": SECRET},
        container=ContainerSpec(memory_bytes=96 * MIB),
    )
    lines = jobs.text.splitlines()
    assert (outcome.state, outcome.exit_code, outcome.step) == (JobState.FAILED, 1, "step 3"), jobs.text
    assert {"hello", "/workspace", "step 1", "0", "interfaces lo ", "processors 1", "by name"} <= set(lines)
    assert {"interrupted", "kept", "1", "no secret"} <= set(lines)
    assert "never" not in lines
    (memory,) = (int(line.split()[1]) for line in lines if line.startswith("MemTotal"))
    assert memory < 96 * 1024
    wrote = [line for line in lines if line.startswith(("out-", "err-"))]
    assert wrote == [f"{kind}-{number}" for number in range(1, 101) for kind in ("out", "err")]
    assert f"<a'b\"c\n$(id)`id` é>\n<{SECRET}>\nno end\n$ step 3" in jobs.text
    assert "$ vm\nimage (tcg, 1 processors, 96 MiB)\n" in jobs.text
    assert outcome.image == "image"


async def test_a_job_changes_its_own_copy_of_the_images_disk_and_that_is_bounded(
    image_with_disk: Path, tmp_path: Path
) -> None:
    disk = image_with_disk / "disk.raw"
    before = hashlib.sha256(disk.read_bytes()).digest()
    watch = DiskWatch(limit_bytes=24 * MIB)
    async with vm_jobs(image_with_disk, tmp_path, disk=watch) as jobs:
        outcome = await jobs.run(
            "cat /etc/image hello.txt; echo changed >/etc/image; sync; grep ' / ext4 rw' /proc/mounts",
            "cat /etc/image; dd if=/dev/urandom of=/big bs=1M || echo full; sync; sleep 1000",
        )
    assert "of the image\nhello\n/dev/vda / ext4 rw" in jobs.text
    assert "changed\n" in jobs.text
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.OUT_OF_DISK), jobs.text
    assert hashlib.sha256(disk.read_bytes()).digest() == before


async def test_the_end_of_a_long_log_that_is_read_slowly_is_not_lost(jobs: VmJobs) -> None:
    jobs.pause_seconds = 0.02
    outcome = await jobs.run("seq 100000; echo the last words")
    assert outcome.state is JobState.SUCCEEDED
    lines = jobs.text.splitlines()
    assert lines[-1] == "the last words"
    assert [line for line in lines if line.isdigit()] == [str(number) for number in range(1, 100001)]


@pytest.mark.parametrize("ends", ["poweroff -f", "echo c >/proc/sysrq-trigger"], ids=["power off", "panic"])
async def test_a_job_that_ends_its_vm_has_failed_and_its_log_is_there(jobs: VmJobs, ends: str) -> None:
    outcome = await jobs.run(f"seq 20000; echo the last words; sleep 1; {ends}; sleep 1000")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.STEP_FAILED), outcome
    assert outcome.exit_code is None
    assert "the job ended its own VM" in outcome.detail
    assert "20000\nthe last words\n" in jobs.text


async def test_a_job_that_stops_what_carries_its_log_hurts_itself_alone(jobs: VmJobs) -> None:
    outcome = await jobs.run("echo heard", "kill -STOP $(pidof cat); echo lost")
    assert outcome.state is JobState.SUCCEEDED
    assert "heard" in jobs.text
    assert "lost" not in jobs.text


async def test_a_job_that_silences_its_whole_vm_runs_out_of_time(jobs: VmJobs) -> None:
    # The agent hears nothing any more, also not that all should end.
    outcome = await jobs.run("echo begun; kill -STOP -1; sleep 1000", timeout_seconds=2.0)
    assert (outcome.state, outcome.reason) == (JobState.TIMED_OUT, Reason.JOB_TIMEOUT)


async def test_all_processes_of_a_job_that_is_stopped_hear_it_and_may_end(jobs: VmJobs) -> None:
    stop = asyncio.Event()
    late = "trap 'sleep 0.5; echo behind ended; exit' TERM; while :; do sleep 0.1; done"
    running = asyncio.ensure_future(
        jobs.run(
            f"({late}) &\ntrap 'echo ahead ended; exit 1' TERM; echo begun; while :; do sleep 0.1; done",
            stop=stop,
        )
    )
    await jobs.wrote("begun\n")
    stop.set()
    outcome = await running
    assert (outcome.state, outcome.reason) == (JobState.CANCELLED, Reason.CANCEL_REQUESTED)
    assert "ahead ended\n" in jobs.text
    assert "behind ended\n" in jobs.text


async def test_a_job_that_needs_too_much_memory_fails_for_that(jobs: VmJobs) -> None:
    outcome = await jobs.run("x=a; while :; do x=$x$x; done")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.OUT_OF_MEMORY), jobs.text
    assert "128 MiB" in outcome.detail


@pytest.mark.parametrize("part", ["qemu", "host", "supervisor", "step"])
async def test_a_killed_part_of_a_vm_is_the_worlds_failure(jobs: VmJobs, part: str) -> None:
    running = asyncio.ensure_future(jobs.run("echo begun; sleep 1000"))
    await jobs.wrote("begun\n")
    (vm,) = jobs.vms
    victims = {
        "qemu": vm,
        "host": parent(vm),
        "supervisor": parent(parent(vm)),
        "step": runs(vm_step),
    }
    os.kill(victims[part], signal.SIGKILL)
    outcome = await running
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.EXECUTOR_FAILED), outcome


@pytest.mark.parametrize(
    ("facts", "is_ready"),
    [(None, False), ("", False), ("{}", False), ("{}", True), ("", True)],
    ids=["before it noted anything", "while it noted", "when ready", "in a step", "in a step while it noted"],
)
async def test_a_host_killed_at_any_moment_is_the_worlds_failure(
    jobs: VmJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: str | None, *, is_ready: bool
) -> None:
    host = tmp_path / "host.py"
    lines = [
        "import os, signal, sys",
        "" if facts is None else f"open(sys.argv[1] + '/facts', 'w').write({facts!r})",
        "" if is_ready else "os.kill(os.getpid(), signal.SIGKILL)",
    ]
    host.write_text("\n".join(lines))
    monkeypatch.setattr(qemu_launcher, "vm_host", SimpleNamespace(__file__=str(host)))
    outcome = await jobs.run("echo never")
    expected = Reason.EXECUTOR_FAILED if is_ready else Reason.PROVISION_FAILED
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, expected), outcome


async def test_a_job_that_writes_to_the_disk_for_its_artifacts_itself_fails_for_that(
    image: Path, tmp_path: Path
) -> None:
    keeping = ArtifactKeeping(directory=ArtifactArchives(tmp_path / "artifacts"))
    # It is root, and the script of our agent is a file there.
    forged = "tar -cf - -C /etc forged | dd of=/dev/vdb conv=fsync"
    async with vm_jobs(image, tmp_path, artifacts=keeping) as jobs:
        outcome = await jobs.run(
            f"echo x >/etc/forged; echo '{forged}' >{qemu_launcher.SCRIPTS}/artifacts.sh",
            artifacts=(ArtifactSpec(name="hello", path="hello.txt"),),
        )
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.ARTIFACT_REFUSED), jobs.text
    assert outcome.detail == "artifact hello: forged is no path in the workspace of the VM"
    assert await asyncio.to_thread(os.listdir, tmp_path / "artifacts/incoming") == []
    assert await asyncio.to_thread(os.listdir, tmp_path / "artifacts/sha256") == []


def parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


async def test_a_vm_that_does_not_start_is_the_worlds_failure(image: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "vmlinuz").symlink_to(image / "vmlinuz")
    (broken / INITRAMFS).write_bytes(b"")
    # Without a shell the kernel cannot start our agent, and panics.
    async with vm_jobs(broken, tmp_path / "one") as jobs:
        outcome = await jobs.run("echo never")
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
    assert "panic" in outcome.detail
    async with vm_jobs(image, tmp_path / "two", start_seconds=0.3) as jobs:
        outcome = await jobs.run("echo never", timeout_seconds=0.1)
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
    assert "not ready within 0.3 s" in outcome.detail


SPEAKING_QEMU = '[[ "$*" =~ id=control,fd=([0-9]+) ]]; fd=${BASH_REMATCH[1]}; read -r hello <&"$fd"; echo "$0" >&"$fd"; sleep 1000'
"""A QEMU whose guest says something, by a shell: its user may not enter the folders of these tests."""


@pytest.mark.parametrize(
    ("trial", "problem"),
    [
        (("bash", "-c", SPEAKING_QEMU, "ready"), ""),
        (("bash", "-c", SPEAKING_QEMU, "broken no disk"), "the VM could not be set up: no disk"),
        # As with a KVM that can be opened and runs nothing.
        (("sh", "-c", "sleep 1000"), "the VM was not ready within 0.5 s"),
        (
            ("sh", "-c", "echo Permission denied >&2; exit 1"),
            "QEMU ended with exit code 1; the last words of QEMU: Permission denied",
        ),
        (("sh", "-c", "kill -9 $$"), "QEMU ended with exit code -9"),
        (("sh", "-c", "kill -9 $PPID; sleep 1000"), "its trial was killed"),
    ],
    ids=["proved", "broken", "hangs", "may not", "QEMU killed", "trial killed"],
)
async def test_kvm_is_used_only_where_a_vm_starts_with_it(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: tuple[str, ...], problem: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kvm_trial, "KVM", Path("/dev/null"))
    monkeypatch.setattr(kvm_trial, "TRIAL_SECONDS", 0.5 if trial[-1] == "sleep 1000" else 60.0)
    accelerators = list[str]()

    def command(_: VmPlan, accelerator: str) -> tuple[str, ...]:
        accelerators.append(accelerator)
        return trial

    monkeypatch.setattr(vm_directory, "qemu_command", command)
    if "PPID" in trial[-1]:
        # One that may kill its parent is the same user as that.
        monkeypatch.setattr(os, "geteuid", lambda: 1)
    before = descendants(os.getpid())
    if problem:
        with pytest.raises(ConfigurationError, match=f"no VM starts with KVM: {problem}"):
            await qemu_launcher.open_qemu(vm_rules(image), "kvm")
    expected = "tcg" if problem else "kvm"
    assert (await qemu_launcher.open_qemu(vm_rules(image), "auto")).accelerator == expected
    assert set(accelerators) == {"kvm"}
    assert await asyncio.to_thread(os.listdir, tmp_path) == []
    assert descendants(os.getpid()) <= before


async def test_without_a_device_there_is_no_kvm(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm_trial, "KVM", Path("/nowhere/kvm"))
    with pytest.raises(ConfigurationError, match="VM_ACCELERATION=kvm: there is no /nowhere/kvm"):
        await qemu_launcher.open_qemu(vm_rules(image), "kvm")
    assert (await qemu_launcher.open_qemu(vm_rules(image), "auto")).accelerator == "tcg"


async def test_a_job_runs_after_a_trial_of_this_machines_own_kvm(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not vm_directory.KVM.exists():
        # `test_without_a_device_there_is_no_kvm` shows what happens then.
        pytest.skip("not asked for: this machine has no /dev/kvm")
    # A VM needs a second with a KVM that works. This test waits for one that hangs.
    monkeypatch.setattr(kvm_trial, "TRIAL_SECONDS", 3.0)
    async with vm_jobs(image, tmp_path, acceleration="auto") as jobs:
        outcome = await jobs.run("cat hello.txt")
    assert outcome.state is JobState.SUCCEEDED, outcome
    (accelerator,) = re.findall(r"image \((\w+), 1 processors", jobs.text)
    assert accelerator in {"kvm", "tcg"}
    assert "\nhello\n" in jobs.text


async def test_a_killed_orchestrator_leaves_no_vm_behind(jobs: VmJobs, image: Path, tmp_path: Path) -> None:
    work, before = tmp_path / "other", descendants(os.getpid())
    peer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.orchestrator.worker.vm_peer"),
        *(str(work), str(image), jobs.request.repo_url, jobs.request.commit_sha),
        stdout=asyncio.subprocess.PIPE,
    )
    assert peer.stdout is not None
    while b"begun" not in await peer.stdout.readline():
        pass
    (vm,) = vm_pids(work)
    host, supervisor = parent(vm), parent(parent(vm))
    # With its supervisor, which would have ended the VM.
    for pid in (peer.pid, supervisor, host):
        os.kill(pid, signal.SIGKILL)
    await peer.wait()
    assert vm_pids(work) == [vm]
    (place,) = (path.name for path in work.iterdir() if path.is_dir())
    (attempt,) = (path for path in (work / place).iterdir() if (path / "vm").exists())
    assert (attempt / "vm/out").stat().st_blocks == 0
    # As every start does, with any executor.
    async with open_workspaces(work, left_containers(os.environ).remove) as workspaces:
        await wait_until(lambda: vm not in process_ids())
        assert [path for path in work.iterdir() if path.is_dir()] == [workspaces.directory]
        assert groups_left(place) == []
    assert descendants(os.getpid()) <= before
