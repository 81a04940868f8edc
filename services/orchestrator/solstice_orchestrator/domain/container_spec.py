"""What a job asks of the container that it runs in, and of its services. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class PullPolicy(StrEnum):
    """When an image is fetched from its registry."""

    MISSING = "missing"
    """When it is not on the worker's machine."""
    ALWAYS = "always"
    NEVER = "never"


class NetworkAccess(StrEnum):
    """What a container reaches."""

    NONE = "none"
    """Nothing but itself."""
    DEFAULT = "default"
    """What the container runtime lets it reach."""
    SERVICES_ONLY = "services-only"
    """The services of its job, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """A server that runs beside a job; None: by the operator's settings."""

    name: str
    """The name by which the job's steps reach it."""
    image: str
    pull: PullPolicy | None = None
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    ready: str | None = None
    """A command that succeeds in its container once the steps may begin."""
    port: int | None = None
    """Where it accepts connections once the steps may begin."""
    ready_seconds: float | None = None
    memory_bytes: int | None = None
    cpus: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The container that a job asks for; None: by the operator's settings."""

    image: str | None = None
    pull: PullPolicy | None = None
    network: NetworkAccess | None = None
    memory_bytes: int | None = None
    cpus: float | None = None
    services: tuple[ServiceSpec, ...] = ()
    """They share the network of the job."""


ANY_CONTAINER: Final = ContainerSpec()
