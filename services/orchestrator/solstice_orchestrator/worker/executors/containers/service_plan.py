"""Decide the arguments of podman that make the containers of services. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from solstice_orchestrator.domain.container_spec import NetworkAccess
from solstice_orchestrator.worker.executors.containers.container_plan import (
    ContainerPlan,
    ServicePlan,
    limit_arguments,
)
from solstice_orchestrator.worker.executors.containers.podman import COMMAND

CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
"""What images of databases need to prepare their directories as root and become another user."""
SERVICES: Final = "services"
"""The directory of an attempt with one of each service."""


def service_arguments(
    service: ServicePlan,
    *,
    name: str,
    network_of: str,
    image_id: str,
    labels: Mapping[str, str],
    group: str,
    directory: str,
    rlimits: Mapping[str, str],
) -> Sequence[str]:
    """Return the arguments of `podman create` for a service in `network_of`, a container.

    Podman names processes in files of `directory`.
    """
    return (
        *("create", "--name", name, "--pull=never", "--log-driver", "passthrough"),
        *(f"--label={key}={value}" for key, value in labels.items()),
        *("--pidfile", f"{directory}/pid", "--conmon-pidfile", f"{directory}/monitor"),
        *("--cgroup-parent", group),
        *("--cap-drop", "all", f"--cap-add={','.join(CAPABILITIES)}", "--security-opt", "no-new-privileges"),
        *("--no-healthcheck", "--systemd=false", "--sdnotify=ignore", "--http-proxy=false", "--restart=no"),
        *("--network", f"container:{network_of}"),
        *limit_arguments(service.container, rlimits),
        *(f"--env={variable}={value}" for variable, value in service.spec.env.items()),
        image_id,
    )


def container_of(service: ServicePlan, job_container: str) -> str:
    """Return the name of a service's container."""
    return f"{job_container}-{service.spec.name}"


def services_file(plan: ContainerPlan, job_container: str) -> dict[str, Any]:
    """Return what `container_services.py` and `container_step.py` read about the services of a job."""
    return {
        "podman": list(COMMAND),
        # On podman's bridge other jobs are neighbours.
        "closed": plan.network is NetworkAccess.DEFAULT,
        "services": [
            {
                "name": service.spec.name,
                "container": container_of(service, job_container),
                "ready": service.spec.ready,
                "port": service.spec.port,
                "seconds": service.ready_seconds,
            }
            for service in plan.services
        ],
    }


def storage_in(containers: Sequence[Mapping[str, Any]]) -> Sequence[Path]:
    """Return the directories in which containers write, from what `podman container inspect` says of them.

    With the storage driver `vfs` these are the volumes alone: it keeps no layers.
    """
    found = []
    for container in containers:
        found += [mount["Source"] for mount in container["Mounts"]]
        found.append((container["GraphDriver"]["Data"] or {}).get("UpperDir"))
    return tuple(Path(each) for each in found if each)
