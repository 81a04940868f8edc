"""Conversion of the container of a job's spec to JSON and back. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from solstice_orchestrator.domain.container_spec import (
    ANY_CONTAINER,
    ContainerSpec,
    NetworkAccess,
    PullPolicy,
    ServiceSpec,
)
from solstice_orchestrator.domain.jobs import JobSpec

NEEDS_SERVICES: Final = "a job with services, which needs a newer orchestrator here: update this one"
"""No name of an image, so orchestrators of older versions refuse it and show this sentence."""
HANDS_ON: Final = (
    "a job with outputs or artifacts of others, which needs a newer orchestrator here: update this one"
)
"""The same for a job that gets something of others, or has outputs."""


def container_fields(spec: JobSpec) -> dict[str, Any]:
    """Return the fields of a job's container.

    Orchestrators before services read `container` alone, and those before handing on do not know `own_container`. They
    refuse such a job, instead of running it without what it needs.
    """
    container = spec.container
    hands_on = bool(spec.needed_artifacts or spec.outputs or spec.needed_outputs)
    if container == ANY_CONTAINER and not hands_on:
        return {}
    written = {
        "image": container.image,
        "pull": container.pull,
        "network": container.network,
        "memory_bytes": container.memory_bytes,
        "cpus": container.cpus,
    }
    has_services = container.services or container.network is NetworkAccess.SERVICES_ONLY
    if not has_services and not hands_on:
        return {"container": written}
    services = [
        {
            "name": service.name,
            "image": service.image,
            "pull": service.pull,
            "env": dict(service.env),
            "ready": service.ready,
            "port": service.port,
            "ready_seconds": service.ready_seconds,
            "memory_bytes": service.memory_bytes,
            "cpus": service.cpus,
        }
        for service in container.services
    ]
    return {
        "container": {
            **dict.fromkeys(written),
            "image": HANDS_ON if hands_on else NEEDS_SERVICES,
        },
        "own_container" if hands_on else "container_with_services": {
            **written,
            "services": services,
        },
    }


def read_container(fields: Mapping[str, Any] | None) -> ContainerSpec:
    if fields is None:
        return ANY_CONTAINER
    return ContainerSpec(
        image=fields["image"],
        pull=_pull(fields["pull"]),
        network=None if fields["network"] is None else NetworkAccess(fields["network"]),
        memory_bytes=fields["memory_bytes"],
        cpus=fields["cpus"],
        services=tuple(
            ServiceSpec(
                name=service["name"],
                image=service["image"],
                pull=_pull(service["pull"]),
                env=MappingProxyType(service["env"]),
                ready=service["ready"],
                port=service["port"],
                ready_seconds=service["ready_seconds"],
                memory_bytes=service["memory_bytes"],
                cpus=service["cpus"],
            )
            for service in fields.get("services", ())
        ),
    )


def _pull(word: str | None) -> PullPolicy | None:
    return None if word is None else PullPolicy(word)
