"""Make the containers of a job's services, beside its own."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes import container_services
from solstice_orchestrator.worker.executors.containers.container_groups import group_of
from solstice_orchestrator.worker.executors.containers.container_plan import (
    LABEL,
    ContainerPlan,
    ServicePlan,
    limits_of,
)
from solstice_orchestrator.worker.executors.containers.images import FoundImage, Images
from solstice_orchestrator.worker.executors.containers.podman import Podman, PodmanResult
from solstice_orchestrator.worker.executors.containers.service_plan import (
    SERVICES,
    container_of,
    service_arguments,
    services_file,
    storage_in,
)
from solstice_orchestrator.worker.executors.service_output import ServiceOutput
from solstice_orchestrator.worker.workspaces import Workspace

LOG = structlog.get_logger(__name__)

SLACK_SECONDS: Final = 60.0
"""For what is done between the starts of containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundService:
    """A service whose image is on this machine."""

    plan: ServicePlan
    image: FoundImage

    @property
    def notice(self) -> str:
        """What the job's log says about it."""
        return f"service {self.plan.spec.name}: {self.plan.container.image} {self.image.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobImages:
    """The images of a job and of its services."""

    own: FoundImage
    services: Sequence[FoundService]


async def find_images(plan: ContainerPlan, images: Images) -> JobImages | Outcome:
    """Return the images of a job, or how the attempt ends without one."""
    own = await images.find(plan)
    if isinstance(own, Outcome):
        return own
    services = await _find_services(plan, images)
    return services if isinstance(services, Outcome) else JobImages(own=own, services=services)


async def _find_services(plan: ContainerPlan, images: Images) -> Sequence[FoundService] | Outcome:
    """Return services with their images, or how the attempt ends without one."""
    found = []
    for service in plan.services:
        image = await images.find(service.container)
        if isinstance(image, Outcome):
            return image
        found.append(FoundService(plan=service, image=image))
    return found


async def create_services(
    podman: Podman,
    services: Sequence[FoundService],
    *,
    job_container: str,
    workspace: Workspace,
    rlimits: Mapping[str, str],
) -> PodmanResult | None:
    """Create the containers; return the first creation that failed."""
    for service in services:
        directory = workspace.root / SERVICES / service.plan.spec.name
        directory.mkdir(mode=0o700, parents=True)
        os.mkfifo(directory / "log", 0o600)
        limits = json.dumps(limits_of(service.plan.container))
        (directory / "limits").write_text(limits, encoding="utf-8")
        created = await podman.run(
            *service_arguments(
                service.plan,
                name=container_of(service.plan, job_container),
                network_of=job_container,
                image_id=service.image.image_id,
                labels={LABEL: str(workspace.root.parent)},
                group=group_of(workspace.root.parent.name, workspace.root.name),
                directory=str(directory),
                rlimits=rlimits,
            )
        )
        if created.code:
            return created
        LOG.info(
            LogEvent.SERVICE_CREATED,
            service=service.plan.spec.name,
            container=job_container,
            image=service.plan.container.image,
            digest=service.image.digest,
        )
    return None


async def storage_of(podman: Podman, plan: ContainerPlan, job_container: str) -> Sequence[Path]:
    """Return the directories of this machine in which the services of a job write.

    Raises RuntimeError when podman cannot tell them.
    """
    if not plan.services:
        return ()
    names = [container_of(service, job_container) for service in plan.services]
    inspected = await podman.run("container", "inspect", *names)
    if inspected.code:
        raise RuntimeError(inspected.problem)
    return storage_in(json.loads(inspected.output))


def with_services(
    plan: ContainerPlan, job_container: str, workspace: Workspace, setup: Sequence[str]
) -> Sequence[str]:
    """Return the command that sets up the job's container and then its services."""
    if not plan.services:
        return setup
    content = json.dumps(services_file(plan, job_container))
    (workspace.root / container_services.FILE).write_text(content, encoding="utf-8")
    return (sys.executable, "-I", "-S", container_services.__file__, str(workspace.root), *setup)


def start_seconds(plan: ContainerPlan) -> float:
    """Return the most that the start of a job's container and its services may take.

    Each of them has a limit of its own, which says what failed.
    """
    starts = (1 + len(plan.services)) * container_services.START_SECONDS
    return starts + max((each.ready_seconds for each in plan.services), default=0.0) + SLACK_SECONDS


def outputs_of(plan: ContainerPlan, job_container: str, workspace: Workspace) -> Mapping[str, ServiceOutput]:
    """Return the outputs of the services by name."""
    return {
        service.spec.name: ServiceOutput(
            pipe=workspace.root / SERVICES / service.spec.name / "log",
            left_out=f"{container_of(service, job_container)}\n".encode(),
        )
        for service in plan.services
    }
