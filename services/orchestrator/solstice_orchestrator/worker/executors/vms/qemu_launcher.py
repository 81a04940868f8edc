"""Launch the steps of an attempt in a VM of QEMU."""

import asyncio
import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import structlog

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes import vm_host, vm_step
from solstice_orchestrator.processes.children import child
from solstice_orchestrator.worker.executors.containers.container_plan import (
    FIRST_USER,
    HOME,
    MIB,
    SOURCE,
    TEMPORARY,
    user_of,
)
from solstice_orchestrator.worker.executors.job_environment import variables_of
from solstice_orchestrator.worker.executors.launcher import Launch
from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.executors.vms.initramfs import initramfs
from solstice_orchestrator.worker.executors.vms.vm_facts import (
    has_crashed,
    judged,
    last_words,
    read_vm_facts,
)
from solstice_orchestrator.worker.executors.vms.vm_images import VmImage
from solstice_orchestrator.worker.executors.vms.vm_plan import (
    COMMAND,
    INITRAMFS,
    Accelerator,
    VmPlan,
    VmRules,
    opened_files,
    qemu_command,
    vm_plan,
)
from solstice_orchestrator.worker.workspaces import Workspace

LOG = structlog.get_logger(__name__)

AGENT: Final = Path(__file__).with_name("guest_agent.sh")
SCRIPTS: Final = "/run/solstice/steps"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KVM: Final = Path("/dev/kvm")
MARK: Final = "SOLSTICE_PLACE"
"""The variable by which processes are found that lost their supervisor (`workspaces.kill_marked`)."""
TRIAL_SECONDS: Final = 20.0
TRIAL_BYTES: Final = 512 * MIB
SLACK_SECONDS: Final = 60.0
"""How much longer than its VM the whole setup may take: the workspace is packed before."""
Acceleration = Literal["auto", "kvm", "tcg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QemuLauncher:
    """The launcher of the executor `qemu`."""

    rules: VmRules
    accelerator: Accelerator
    isolates: bool = True

    @asynccontextmanager
    async def launch(self, execution: Execution, place: Workspace) -> AsyncIterator[Launch | Outcome]:
        plan = vm_plan(execution, self.rules)
        if isinstance(plan, Outcome):
            yield plan
            return
        execution.provisioning.begin()
        directory = place.root / "vm"
        for number, step in enumerate(execution.spec.steps, start=1):
            (place.scripts / f"{number:03}.sh").write_text(step.run + "\n", encoding="utf-8")
        await asyncio.to_thread(
            _prepare,
            directory,
            plan,
            self.accelerator,
            directories={SOURCE: place.source, SCRIPTS: place.scripts},
            mark=f"{place.root}/",
            user=user_of(place.root.name),
            seconds=self.rules.start_seconds,
        )
        yield self._launched(execution, place, plan, directory)

    def _launched(self, execution: Execution, place: Workspace, plan: VmPlan, directory: Path) -> Launch:
        step_command = (sys.executable, "-I", "-S", vm_step.__file__, str(directory))

        def judged_by_facts(outcome: Outcome) -> Outcome:
            file = directory / "facts"
            facts = read_vm_facts(file.read_text() if file.exists() else "")
            if has_crashed(facts):
                LOG.error(
                    LogEvent.VM_CRASHED,
                    job_id=execution.job_id,
                    attempt=execution.attempt,
                    exit_code=facts.gone,
                    detail=facts.words,
                )
            return replace(judged(outcome, facts, plan), image=plan.image.folder.name)

        return Launch(
            directory=Path("/"),
            environment={
                "PATH": PATH,
                "HOME": HOME,
                "TMPDIR": TEMPORARY,
                "USER": "root",
                "LOGNAME": "root",
                **variables_of(execution, SOURCE),
            },
            commands=[
                (*step_command, str(number), f"{SCRIPTS}/{number:03}.sh")
                for number in range(1, len(execution.spec.steps) + 1)
            ],
            setup=(sys.executable, "-I", "-S", vm_host.__file__, str(directory)),
            setup_seconds=self.rules.start_seconds + SLACK_SECONDS,
            own_environment={"PATH": PATH, MARK: f"{place.root}/"},
            prefix=vm_step.PREFIX,
            isolates=True,
            title="$ vm",
            notice=f"{plan.image.folder.name} ({self.accelerator}, {plan.cpus} processors, "
            f"{plan.memory_bytes // 1024 // 1024} MiB)",
            judged=judged_by_facts,
        )


def _prepare(
    directory: Path,
    plan: VmPlan,
    accelerator: Accelerator,
    *,
    directories: Mapping[str, Path],
    mark: str,
    user: int,
    seconds: float,
) -> None:
    """Make a directory with all from which `vm_host.py` starts a VM.

    The guest gets copies of `directories`, by their places there. Where we are root, QEMU is the user `user`.
    """
    disk, own_archive = directory / "disk", directory / "agent"
    directory.mkdir(mode=0o700)
    disk.mkdir(mode=0o700)
    own_archive.write_bytes(initramfs({"init": AGENT.read_bytes()}))
    spec = {
        "command": qemu_command(plan, accelerator),
        "seconds": seconds,
        "env": {"PATH": PATH, "TMPDIR": ".", MARK: mark},
        "directories": {place: str(each) for place, each in directories.items()},
        "opened": opened_files(plan.image),
        "files": {INITRAMFS: [str(plan.image.initramfs), str(own_archive)]},
        "as": {},
    }
    if os.geteuid() == 0:
        os.chown(disk, user, user)
        spec["as"] = {"user": user, "group": user, "extra_groups": _groups_of_kvm()}
    (directory / "vm.json").write_text(json.dumps(spec), encoding="utf-8")


def _groups_of_kvm() -> list[int]:
    """Return the group that may use KVM, where that is not root's alone."""
    with contextlib.suppress(OSError):
        status = KVM.stat()
        if status.st_mode & stat.S_IWGRP and status.st_gid != 0:
            return [status.st_gid]
    return []


async def open_qemu(rules: VmRules, acceleration: Acceleration) -> QemuLauncher:
    """Return a launcher of VMs, with KVM only where a VM starts with it.

    Raises ConfigurationError, with one sentence that says what is missing.
    """
    if shutil.which(COMMAND, path=PATH) is None:
        raise ConfigurationError(f"EXECUTOR=qemu: there is no {COMMAND} on this machine")
    if not rules.images:
        raise ConfigurationError("EXECUTOR=qemu: VM_IMAGES names no image of a VM")
    problem = "" if acceleration == "tcg" else await _problem_of_kvm(next(iter(rules.images.values())))
    if acceleration == "kvm" and problem:
        raise ConfigurationError(f"VM_ACCELERATION=kvm: {problem}")
    accelerator: Accelerator = "tcg" if problem or acceleration == "tcg" else "kvm"
    (LOG.warning if problem else LOG.info)(
        LogEvent.VM_ACCELERATOR_CHOSEN, accelerator=accelerator, detail=problem or None
    )
    return QemuLauncher(rules=rules, accelerator=accelerator)


async def _problem_of_kvm(image: VmImage) -> str:
    """Start a VM with KVM; return why it was not ready, or nothing.

    A `/dev/kvm` that opens proves nothing: it may hang before the first instruction.
    """
    if not KVM.exists():
        return f"there is no {KVM}"
    plan = VmPlan(label="", image=image, has_network=False, memory_bytes=TRIAL_BYTES, cpus=1)
    with tempfile.TemporaryDirectory(prefix="solstice-vm-") as folder:
        directory = Path(folder) / "trial"
        _prepare(
            directory,
            plan,
            "kvm",
            directories={},
            mark=f"{folder}/",
            user=FIRST_USER,
            seconds=TRIAL_SECONDS,
        )
        command = (sys.executable, "-I", "-S", vm_host.__file__, str(directory), "trial")
        async with child(command, Path("/"), {"PATH": PATH, MARK: f"{folder}/"}, b"") as trial:
            await asyncio.gather(trial.stdout.read(), trial.stderr.read())
            await trial.wait()
        facts = read_vm_facts((directory / "facts").read_text())
    if facts.unready or facts.starting:
        return f"no VM starts with KVM: {facts.unready or 'its trial was killed'}{last_words(facts)}"
    return ""
