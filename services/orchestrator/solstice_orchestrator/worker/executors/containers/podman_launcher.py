"""Launch the steps of an attempt in one container of podman."""

import asyncio
import contextlib
import json
import os
import resource
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from solstice_common.errors import ConfigurationError
from solstice_common.messages.states import JobState
from solstice_common.values.references import References
from solstice_orchestrator.domain.image_names import full_name
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes import container_step
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.processes.control_groups import own_group
from solstice_orchestrator.processes.egress import egress_facts, egress_proxy
from solstice_orchestrator.worker.executors.containers.container_facts import judged, read_facts
from solstice_orchestrator.worker.executors.containers.container_groups import (
    ROOT,
    delegated_base,
    group_of,
    make_group,
    remove_groups,
)
from solstice_orchestrator.worker.executors.containers.container_plan import (
    HOME,
    LABEL,
    ROOTLESS_USER,
    SCRIPTS,
    SOURCE,
    TEMPORARY,
    ContainerPlan,
    ContainerRules,
    container_plan,
    create_arguments,
    limits_of,
    refused,
    user_of,
)
from solstice_orchestrator.worker.executors.containers.egress_plan import (
    egress_file,
    egress_notice,
    egress_variables,
    read_counts,
)
from solstice_orchestrator.worker.executors.containers.images import Images, index_of
from solstice_orchestrator.worker.executors.containers.left_containers import BASE, CONTROL, REMOVALS
from solstice_orchestrator.worker.executors.containers.podman import COMMAND, Podman, passed_on
from solstice_orchestrator.worker.executors.containers.service_plan import SERVICES, container_of
from solstice_orchestrator.worker.executors.containers.services import (
    JobImages,
    create_services,
    find_images,
    outputs_of,
    start_seconds,
    storage_of,
    with_services,
)
from solstice_orchestrator.worker.executors.job_environment import variables_of
from solstice_orchestrator.worker.executors.launcher import Launch
from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.workspaces import Workspace

LOG = structlog.get_logger(__name__)

SERVICE_PROCESSES: Final = 4096
"""Of one user in all services together; the control group of each service limits its own."""
PIPES: Final = (CONTROL, "verdict")
KILLED: Final = "137"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanLauncher:
    """The launcher of the executor `podman`."""

    podman: Podman
    rules: ContainerRules
    images: Images
    isolates: bool = True
    rlimits: Mapping[str, str]
    service_rlimits: Mapping[str, str]
    base: str | None = None
    """The control group above those of all attempts; None: the orchestrator is root, and they are at the top."""

    def needs_files(self, _: Execution, /) -> bool:
        return True

    def system(self, execution: Execution, /) -> str | None:
        image = full_name(execution.spec.container.image or self.rules.default_image)
        return f"{execution.spec.runs_on}, podman, {os.uname().machine}, {image}"

    @asynccontextmanager
    async def launch(self, execution: Execution, workspace: Workspace) -> AsyncIterator[Launch | Outcome]:
        plan = container_plan(execution, self.rules)
        if isinstance(plan, Outcome):
            yield plan
            return
        if plan.services and self.base is not None:
            yield refused(
                "the job has services, and this worker runs without root: let it run where a worker is root"
            )
            return
        execution.provisioning.begin()
        found = await find_images(plan, self.images)
        if isinstance(found, Outcome):
            yield found
            return
        name, image = container_name(workspace), f"{plan.image.partition('@')[0]}@{found.own.digest}"
        await execution.image_found(image)
        try:
            failure = await self._create(plan, found, name, workspace)
            if failure:
                yield failure
                return
            LOG.info(
                LogEvent.CONTAINER_CREATED,
                job_id=execution.job_id,
                attempt=execution.attempt,
                image=plan.image,
                digest=found.own.digest,
            )
            storage = await storage_of(self.podman, plan, name)
            with ExitStack() as pipes:
                # Until the end: process 1 of the container ends when its standard input does.
                for pipe in PIPES:
                    pipes.callback(os.close, os.open(workspace.root / pipe, os.O_RDWR | os.O_CLOEXEC))
                launched = self._launched(execution, workspace, plan, found, image)
                yield replace(launched, storage=storage)
        finally:
            names = [*(container_of(service, name) for service in plan.services), name]
            await run_to_completion(self._remove(names, workspace), f"removal of {name}")

    async def _create(
        self, plan: ContainerPlan, found: JobImages, name: str, workspace: Workspace
    ) -> Outcome | None:
        """Create the containers; return the outcome of an attempt for which that fails."""
        for pipe in PIPES:
            os.mkfifo(workspace.root / pipe, 0o600)
        group = group_of(workspace.root.parent.name, workspace.root.name, self.base or "")
        mounts = {SOURCE: workspace.source, HOME: workspace.home, TEMPORARY: workspace.temporary}
        user = None
        if self.base is None:
            user = user_of(workspace.root.name)
            for directory in mounts.values():
                await asyncio.to_thread(_give, directory, user)
        else:
            (workspace.root / BASE).write_text(self.base)
            await asyncio.to_thread(make_group, group)
        created = await self.podman.run(
            *create_arguments(
                plan,
                name=name,
                image_id=found.own.image_id,
                user=user,
                labels={LABEL: str(workspace.root.parent)},
                group=group,
                directory=str(workspace.root),
                mounts={
                    **{inside: str(path) for inside, path in mounts.items()},
                    f"{SCRIPTS}:ro": str(workspace.scripts),
                },
                rlimits=self.rlimits,
            )
        )
        if not created.code:
            problem = await self.images.shell_problem(plan.image, found.own, name, workspace.root / "shell")
            if problem or not found.services:
                return problem
            failed = await create_services(
                self.podman,
                found.services,
                job_container=name,
                workspace=workspace,
                rlimits=self.service_rlimits,
            )
            if failed is None:
                return None
            if "no command or entrypoint" in failed.errors:
                return refused(f"the image of a service has no command that can run: {failed.problem}")
            created = failed
        full = "no space left on device" in created.errors
        return Outcome(
            state=JobState.ERRORED,
            reason=Reason.MACHINE_FAILED if full else Reason.PROVISION_FAILED,
            detail=f"the container could not be created: {created.problem}",
        )

    def _launched(
        self, execution: Execution, workspace: Workspace, plan: ContainerPlan, found: JobImages, image: str
    ) -> Launch:
        name = container_name(workspace)
        (workspace.root / "limits").write_text(json.dumps(limits_of(plan)), encoding="utf-8")
        if plan.egress is not None:
            command = egress_proxy.proxy_command(workspace.root)
            content = egress_file(plan.egress, workspace.root.name, command, is_root=self.base is None)
            (workspace.root / egress_facts.FILE).write_text(json.dumps(content), encoding="utf-8")
        workspace.scripts.chmod(0o755)
        step_command = (sys.executable, "-I", "-S", container_step.__file__, str(workspace.root))
        commands = []
        for number, step in enumerate(execution.spec.steps):
            script = workspace.scripts / f"{number + 1:03}.sh"
            script.write_text(step.run + "\n", encoding="utf-8")
            script.chmod(0o644)
            commands.append((*step_command, str(number), f"{SCRIPTS}/{script.name}"))
        environment = {
            "HOME": HOME,
            "TMPDIR": TEMPORARY,
            "USER": "ci",
            "LOGNAME": "ci",
            **egress_variables(plan),
            **variables_of(execution, SOURCE, TEMPORARY),
        }

        outputs = outputs_of(plan, name, workspace)

        def judged_by_facts(outcome: Outcome) -> Outcome:
            facts = read_facts(_text_of(workspace.root / "facts"))
            tails = {service: output.tail.decode(errors="replace") for service, output in outputs.items()}
            ended = judged(outcome, facts, plan, tails)
            counts = read_counts(_text_of(workspace.root / egress_facts.COUNTS))
            return replace(ended, image=image, egress=counts)

        return Launch(
            directory=Path("/"),
            environment=environment,
            commands=commands,
            setup=with_services(plan, name, workspace, (*step_command, "start", *COMMAND, "start", name)),
            setup_seconds=start_seconds(plan),
            own_environment=self.podman.environment,
            prefix=container_step.PREFIX,
            isolates=True,
            services=outputs,
            notice="\n".join(
                [
                    f"{plan.image} {found.own.digest}",
                    *(each.notice for each in found.services),
                    *egress_notice(plan),
                ]
            ),
            judged=judged_by_facts,
        )

    async def _remove(self, names: Sequence[str], workspace: Workspace) -> None:
        directories = (workspace.root, *workspace.root.glob(f"{SERVICES}/*"))
        # With the job's container podman removes those that depend on it. Versions before 4.0 do not know that.
        which: Sequence[str] = ("--depend", names[-1]) if names[1:] else names
        for _ in range(REMOVALS):
            for directory in directories:
                _note_end(directory)
            removed = await self.podman.run("rm", "--force", "--time=0", "--volumes", "--ignore", *which)
            which = names
            if not removed.code:
                break
        else:
            LOG.error(LogEvent.CONTAINER_NOT_REMOVED, container=names[-1], detail=removed.problem)
        await asyncio.to_thread(
            remove_groups, workspace.root.parent.name, workspace.root.name, self.base or ""
        )


def container_name(workspace: Workspace) -> str:
    """Return the name of the container of an attempt."""
    return f"solstice-{workspace.root.name}"


async def open_podman(environ: Mapping[str, str], rules: ContainerRules, logins: str = "") -> PodmanLauncher:
    """Return a launcher once podman has shown that it can run jobs here.

    Passwords of logins may be files beside the file `logins`.

    Raises ConfigurationError, with one sentence that says what is missing.
    """
    podman = Podman(environment=passed_on(environ))
    base = None if os.geteuid() == 0 else await asyncio.to_thread(_delegated)
    try:
        info = await podman.run("info", "--format", "json")
    except OSError as error:
        raise ConfigurationError(f"EXECUTOR=podman: podman could not be started: {error}") from None
    if info.code:
        raise ConfigurationError(f"EXECUTOR=podman: {info.problem}")
    facts = json.loads(info.output)
    host = facts["host"]
    missing = {"cpu", "memory", "pids"} - set(host.get("cgroupControllers") or ())
    if missing:
        raise ConfigurationError(
            f"EXECUTOR=podman: without the control groups {', '.join(sorted(missing))} a job has no limits"
        )
    if not host.get("security", {}).get("seccompEnabled"):
        raise ConfigurationError("EXECUTOR=podman: podman was built without seccomp")
    users = sum(each["size"] for each in (host.get("idMappings") or {}).get("uidmap") or ())
    if base is not None and users <= ROOTLESS_USER:
        raise ConfigurationError(
            "EXECUTOR=podman: without root, the orchestrator's user needs users below it (subuid(5), subgid(5))"
        )
    images = Images(podman=podman, references=_references(logins, environ), index=index_of(facts["store"]))
    return PodmanLauncher(
        podman=podman,
        rules=rules,
        images=images,
        rlimits=_rlimits(rules.processes),
        service_rlimits=_rlimits(SERVICE_PROCESSES),
        base=base,
    )


def _delegated() -> str:
    """Return the control group in which an orchestrator without root may limit its jobs."""
    group = own_group()
    if group is None or not (ROOT / "cgroup.controllers").exists():
        raise ConfigurationError(
            "EXECUTOR=podman: without root, a job has limits with control groups of version 2 alone; this machine has "
            "version 1: let the orchestrator run as root, or start the machine with version 2"
        )
    try:
        return delegated_base(group)
    except OSError as error:
        raise ConfigurationError(
            f"EXECUTOR=podman: without root, the orchestrator needs a control group that belongs to its user, with cpu, "
            f"memory and pids (Delegate=yes of systemd); its own is {group}: {error.strerror or error}"
        ) from None


def _text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _references(file: str, environ: Mapping[str, str]) -> References:
    return References(folder=Path(file).expanduser().parent, environ=environ)


def _rlimits(processes: int) -> dict[str, str]:
    """Return limits for a job, none higher than our own: that would need a privilege."""
    files, tasks = (resource.getrlimit(each)[1] for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    most = processes if tasks == resource.RLIM_INFINITY else min(processes, tasks)
    return {"nofile": f"{files}:{files}", "nproc": f"{most}:{most}"}


def _note_end(directory: Path) -> None:
    """Write in place of a killed monitor that its container has ended.

    Otherwise podman would take it for running, and fail to stop it, in a call for each container before the one that
    removes them all.
    """
    try:
        file = Path((directory / container_step.EXIT_FILE).read_text())
        running = Path(f"/proc/{(directory / 'pid').read_text()}").exists()
    except OSError:
        # It has not begun.
        return
    with contextlib.suppress(OSError):
        # Empty: the monitor found no space for more, and podman would not remove a container with such a note.
        if not running and (not file.exists() or file.stat().st_size == 0):
            _write_whole(file, KILLED)


def _write_whole(file: Path, text: str) -> None:
    """Write a file, or remove it where there is no space."""
    try:
        file.write_text(text)
    except OSError:
        file.unlink(missing_ok=True)


def _give(directory: Path, user: int) -> None:
    """Make a user the owner of a tree; nothing in it is followed."""
    os.chown(directory, user, user)
    for parent, directories, files in os.walk(directory):
        for entry in (*directories, *files):
            os.chown(Path(parent) / entry, user, user, follow_symlinks=False)
