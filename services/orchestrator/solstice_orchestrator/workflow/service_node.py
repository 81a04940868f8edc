"""Read the nodes `service` of a job or of `defaults`. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, ServiceSpec
from solstice_orchestrator.workflow.container_node import cpus, image_name, memory, pull_policy
from solstice_orchestrator.workflow.env_node import Fill, read_env
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue, SourcePosition
from solstice_orchestrator.workflow.shape import (
    children,
    duration,
    expect_arguments,
    expect_childless,
    plain,
    properties,
    text,
)

MAX_SERVICES: Final = 10
MAX_PORT: Final = 65535
MAX_READY_BYTES: Final = 4 * 1024
MAX_ENVIRONMENT_BYTES: Final = 64 * 1024
"""They are arguments of a command."""
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_TAKEN: Final = ("localhost", "ci")
"""Names that a container has for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceNode:
    """A service, and where its file names it."""

    spec: ServiceSpec
    position: SourcePosition


def read_services(node: KdlNode, fill: Fill) -> Sequence[ServiceNode]:
    """Read the services of a `job` or `defaults` node."""
    services: list[ServiceNode] = []
    for child in node.children:
        if child.name == "service":
            service = ServiceNode(spec=_service(child, fill), position=child.position)
            if service.spec.name in {each.spec.name for each in services}:
                raise child.position.problem(
                    f"there is a service {service.spec.name!r} here already; names are unique"
                )
            services.append(service)
    return services


def with_services(
    container: ContainerSpec, own: Sequence[ServiceNode], rest: Sequence[ServiceNode]
) -> ContainerSpec:
    """Return the job's container with its own services, and those of `defaults`.

    Its own replace those by name.
    """
    by_name = {each.spec.name: each for each in (*rest, *own)}
    if by_name and container.network is NetworkAccess.NONE:
        raise (*own, *rest)[0].position.problem(
            "with network=none a job does not reach its services; write network=services-only"
        )
    _check_together(by_name.values())
    return replace(container, services=tuple(each.spec for each in by_name.values()))


def _check_together(services: Iterable[ServiceNode]) -> None:
    listening: dict[int, str] = {}
    for number, each in enumerate(services):
        if number == MAX_SERVICES:
            raise each.position.problem(f"a job may have {MAX_SERVICES} services, no more")
        port, name = each.spec.port, each.spec.name
        if port is not None and port in listening:
            raise each.position.problem(
                f"the services {listening[port]!r} and {name!r} cannot both have the port {port}: the services of a job "
                "share one network; let one of them listen elsewhere, by its env"
            )
        if port is not None:
            listening[port] = name


def _service(node: KdlNode, fill: Fill) -> ServiceSpec:
    expect_arguments(node, 1, 'a service has one name: service "postgres" image="postgres:17"')
    values = properties(node, ("image", "pull", "memory", "cpus", "ready-timeout"))
    if "image" not in values:
        raise node.position.problem('a service needs image="...", the image that it runs')
    env: Mapping[str, str] = MappingProxyType({})
    ready = port = None
    known = ("env", "ready", "port")
    for child in children(node, known, "in a service", once=known):
        match child.name:
            case "env":
                env = _env(child, fill)
            case "ready":
                ready = _ready(child, fill)
            case _:
                port = _port(child)
    return ServiceSpec(
        name=_name(node.arguments[0]),
        image=image_name(values["image"], fill),
        pull=pull_policy(values),
        env=env,
        ready=ready,
        port=port,
        ready_seconds=duration(values["ready-timeout"]) if "ready-timeout" in values else None,
        memory_bytes=memory(values["memory"]) if "memory" in values else None,
        cpus=cpus(values["cpus"]) if "cpus" in values else None,
    )


def _name(value: KdlValue) -> str:
    name = text(value, "the name of a service")
    if not _LABEL.fullmatch(name) or name in _TAKEN:
        raise value.position.problem(
            f"{name[:80]!r} cannot name a service, which becomes the name of a host: at most 63 of a-z, 0-9 and '-', "
            f"neither first nor last a '-', and not {' or '.join(map(repr, _TAKEN))}"
        )
    return name


def _env(node: KdlNode, fill: Fill) -> Mapping[str, str]:
    env = read_env(node, fill)
    if sum(len(f"{name}={value}".encode()) for name, value in env.items()) > MAX_ENVIRONMENT_BYTES:
        raise node.position.problem(
            f"the variables of a service have at most {MAX_ENVIRONMENT_BYTES // 1024} KiB together"
        )
    return env


def _ready(node: KdlNode, fill: Fill) -> str:
    expect_arguments(node, 1, 'ready takes one command: ready "pg_isready -U ci"')
    properties(node, ())
    expect_childless(node)
    argument = node.arguments[0]
    command = fill(text(argument, "the command of ready"), argument.position)
    if not command.strip() or len(command.encode()) > MAX_READY_BYTES:
        raise argument.position.problem(
            f"the command of ready is neither empty nor longer than {MAX_READY_BYTES // 1024} KiB"
        )
    return command


def _port(node: KdlNode) -> int:
    rule = "port takes one number from 1 to 65535, without quotes: port 5432"
    expect_arguments(node, 1, rule)
    properties(node, ())
    expect_childless(node)
    value = node.arguments[0]
    plain(value.annotation, value.position)
    port = value.value
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= MAX_PORT:
        raise value.position.problem(rule)
    return port
