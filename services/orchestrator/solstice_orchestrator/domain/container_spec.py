"""What a job asks of the container that it runs in. Pure."""

from dataclasses import dataclass
from enum import StrEnum
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The container that a job asks for; None: by the operator's settings."""

    image: str | None = None
    pull: PullPolicy | None = None
    network: NetworkAccess | None = None
    memory_bytes: int | None = None
    cpus: float | None = None


ANY_CONTAINER: Final = ContainerSpec()
