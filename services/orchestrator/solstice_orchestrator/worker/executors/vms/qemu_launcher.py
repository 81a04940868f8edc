"""Launch the steps of an attempt in a VM of QEMU."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import structlog

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.domain.container_spec import NetworkAccess
from solstice_orchestrator.domain.jobs import Outcome, StepSpec
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes import vm_host, vm_step
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.worker.artifacts.device_files import DeviceFiles
from solstice_orchestrator.worker.executors.containers.container_plan import HOME, SOURCE, TEMPORARY
from solstice_orchestrator.worker.executors.job_environment import variables_of
from solstice_orchestrator.worker.executors.launcher import Launch
from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.executors.vms.enclosures import Enclosure, find_enclosure
from solstice_orchestrator.worker.executors.vms.handing_out import SCRIPT, handing_out
from solstice_orchestrator.worker.executors.vms.kvm_trial import problem_of_kvm
from solstice_orchestrator.worker.executors.vms.vm_directory import MARK, PATH, make_vm_directory
from solstice_orchestrator.worker.executors.vms.vm_facts import has_crashed, judged, read_vm_facts
from solstice_orchestrator.worker.executors.vms.vm_plan import (
    COMMAND,
    OUT,
    Accelerator,
    VmPlan,
    VmRules,
    vm_plan,
)
from solstice_orchestrator.worker.workspaces import Workspace

LOG = structlog.get_logger(__name__)

SCRIPTS: Final = "/run/solstice/steps"
HANDS_OUT: Final = StepSpec(name="artifacts", run=SCRIPT)
"""The step of ours that follows those of a job with artifacts."""
SLACK_SECONDS: Final = 60.0
"""How much longer than its VM the whole setup may take: the workspace is packed before."""
Acceleration = Literal["auto", "kvm", "tcg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QemuLauncher:
    """The launcher of the executor `qemu`."""

    rules: VmRules
    accelerator: Accelerator
    enclosure: Enclosure
    isolates: bool = True

    def needs_files(self, _: Execution, /) -> bool:
        return True

    def system(self, _: Execution, /) -> str | None:
        # What a VM wrote is on its disk, which would have to be read as hostile, links and times included.
        return None

    @asynccontextmanager
    async def launch(self, execution: Execution, workspace: Workspace) -> AsyncIterator[Launch | Outcome]:
        plan = vm_plan(execution, self.rules)
        if isinstance(plan, Outcome):
            yield plan
            return
        execution.provisioning.begin()
        for number, step in enumerate(execution.spec.steps, start=1):
            (workspace.scripts / f"{number:03}.sh").write_text(step.run + "\n", encoding="utf-8")
        if execution.spec.hands_out:
            script = handing_out(execution.spec.artifacts, execution.spec.outputs, TEMPORARY)
            (workspace.scripts / SCRIPT).write_text(script, encoding="utf-8")
        names = workspace.root.parent.name, workspace.root.name
        try:
            making = asyncio.to_thread(
                make_vm_directory,
                workspace.root,
                plan,
                self.accelerator,
                self.enclosure,
                directories={SOURCE: workspace.source, SCRIPTS: workspace.scripts},
                seconds=self.rules.start_seconds,
            )
            directory = await run_to_completion(making, f"directory of the VM of {execution.job_id}")
            yield self._launched(execution, workspace, plan, directory)
        finally:
            await run_to_completion(
                asyncio.to_thread(self.enclosure.remove, *names), f"removal of the groups of {names[1]}"
            )

    def _launched(self, execution: Execution, workspace: Workspace, plan: VmPlan, directory: Path) -> Launch:
        step_command = (sys.executable, "-I", "-S", vm_step.__file__, str(directory))

        def judged_by_facts(outcome: Outcome) -> Outcome:
            file = directory / "facts"
            facts = replace(
                read_vm_facts(file.read_text() if file.exists() else ""),
                starved=self.enclosure.has_lacked_memory(workspace.root.parent.name, workspace.root.name),
            )
            if has_crashed(facts):
                LOG.error(
                    LogEvent.VM_CRASHED,
                    job_id=execution.job_id,
                    attempt=execution.attempt,
                    exit_code=facts.gone,
                    detail=facts.words,
                )
            return replace(judged(outcome, facts, plan), image=plan.image.folder.name)

        device = DeviceFiles(directory / OUT)
        added = (HANDS_OUT,) if execution.spec.hands_out else ()
        scripts = [
            *(f"{number:03}.sh" for number in range(1, len(execution.spec.steps) + 1)),
            *(step.run for step in added),
        ]
        return Launch(
            directory=Path("/"),
            environment={
                "PATH": PATH,
                "HOME": HOME,
                "TMPDIR": TEMPORARY,
                "USER": "root",
                "LOGNAME": "root",
                **variables_of(execution, SOURCE, TEMPORARY),
            },
            commands=[
                (*step_command, str(number), f"{SCRIPTS}/{script}")
                for number, script in enumerate(scripts, start=1)
            ],
            added_steps=added,
            setup=(sys.executable, "-I", "-S", vm_host.__file__, str(directory)),
            setup_seconds=self.rules.start_seconds + SLACK_SECONDS,
            own_environment={"PATH": PATH, MARK: f"{workspace.root}/"},
            prefix=vm_step.PREFIX,
            isolates=True,
            source=device,
            written=device.written,
            leaves_reports=False,
            title="$ vm",
            notice=f"{plan.image.folder.name} ({self.accelerator}, {plan.cpus} processors, "
            f"{plan.memory_bytes // 1024 // 1024} MiB)",
            judged=judged_by_facts,
        )


async def open_qemu(rules: VmRules, acceleration: Acceleration) -> QemuLauncher:
    """Return a launcher of VMs, with KVM only where a VM starts with it.

    Raises ConfigurationError, with one sentence that says what is missing.
    """
    if shutil.which(COMMAND, path=PATH) is None:
        raise ConfigurationError(f"EXECUTOR=qemu: there is no {COMMAND} on this machine")
    if not rules.images:
        raise ConfigurationError("EXECUTOR=qemu: VM_IMAGES names no image of a VM")
    enclosure = await _enclosure(rules)
    problem = "" if acceleration == "tcg" else await problem_of_kvm(rules.images.values(), enclosure)
    if acceleration == "kvm" and problem:
        raise ConfigurationError(f"VM_ACCELERATION=kvm: {problem}")
    accelerator: Accelerator = "tcg" if problem or acceleration == "tcg" else "kvm"
    (LOG.warning if problem else LOG.info)(
        LogEvent.VM_ACCELERATOR_CHOSEN, accelerator=accelerator, detail=problem or None
    )
    return QemuLauncher(rules=rules, accelerator=accelerator, enclosure=enclosure)


async def _enclosure(rules: VmRules) -> Enclosure:
    has_network = rules.network is NetworkAccess.DEFAULT
    enclosure = await find_enclosure(PATH, has_network=has_network)
    lacks = "; ".join(enclosure.lacks)
    if has_network and not enclosure.namespace:
        raise ConfigurationError(
            f"VM_NETWORK=default: it needs slirp4netns and a network namespace, so that no VM reaches what listens on "
            f"this machine's loopback address: {lacks}"
        )
    (LOG.warning if lacks else LOG.info)(
        LogEvent.VM_ENCLOSED, bounded=", ".join(enclosure.bounds), detail=lacks or None
    )
    return enclosure
