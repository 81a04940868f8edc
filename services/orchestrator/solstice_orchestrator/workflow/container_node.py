"""Read the node `image`, and what else a job or `defaults` say about containers. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, PullPolicy
from solstice_orchestrator.domain.image_names import MAX_NAME, is_image_name
from solstice_orchestrator.workflow.env_node import Fill
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue
from solstice_orchestrator.workflow.shape import (
    expect_arguments,
    expect_childless,
    one_of,
    plain,
    properties,
    text,
)

SIZES: Final = ("memory", "cpus", "network")
"""The properties of a job or of `defaults` for its container."""
MAX_CPUS: Final = 1024
LEAST_MEMORY: Final = 8 * 1024**2
_MEMORY: Final = re.compile(r"([1-9][0-9]{0,8})([kmg])")
_UNITS: Final = {"k": 1024, "m": 1024**2, "g": 1024**3}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProperties:
    """As written; None where something is not given."""

    image: str | None = None
    pull: PullPolicy | None = None
    network: NetworkAccess | None = None
    memory_bytes: int | None = None
    cpus: float | None = None

    def spec(self, defaults: "ContainerProperties") -> ContainerSpec:
        """Return the job's container; `defaults` gives what this does not."""
        return ContainerSpec(
            image=self.image or defaults.image,
            # How an image is fetched stands beside it.
            pull=self.pull if self.image else defaults.pull,
            network=self.network or defaults.network,
            memory_bytes=self.memory_bytes or defaults.memory_bytes,
            cpus=self.cpus or defaults.cpus,
        )


def read_container(node: KdlNode, values: Mapping[str, KdlValue], fill: Fill) -> ContainerProperties:
    """Read what a `job` or `defaults` node says about containers; `values` are its properties."""
    network = one_of(values["network"], "network", tuple(NetworkAccess)) if "network" in values else None
    image = next((child for child in node.children if child.name == "image"), None)
    name, pull = _image(image, fill) if image else (None, None)
    return ContainerProperties(
        image=name,
        pull=pull,
        network=NetworkAccess(network) if network else None,
        memory_bytes=memory(values["memory"]) if "memory" in values else None,
        cpus=cpus(values["cpus"]) if "cpus" in values else None,
    )


def _image(node: KdlNode, fill: Fill) -> tuple[str, PullPolicy | None]:
    """Return the name, and when it is fetched."""
    expect_arguments(node, 1, 'image takes one name: image "python:3.12"')
    expect_childless(node)
    values = properties(node, ("pull",))
    return image_name(node.arguments[0], fill), pull_policy(values)


def image_name(value: KdlValue, fill: Fill) -> str:
    """Return the name of an image."""
    name = fill(text(value, "the name of an image"), value.position)
    if not is_image_name(name):
        raise value.position.problem(
            f"{name[:80]!r} cannot name an image: write it as python:3.12 or ghcr.io/acme/build@sha256:..., at most "
            f"{MAX_NAME} characters"
        )
    return name


def pull_policy(values: Mapping[str, KdlValue]) -> PullPolicy | None:
    """Return what the property `pull` says; None where it is not given."""
    return PullPolicy(one_of(values["pull"], "pull", tuple(PullPolicy))) if "pull" in values else None


def memory(value: KdlValue) -> int:
    """Return a size in bytes."""
    match = _MEMORY.fullmatch(text(value, "memory"))
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if size < LEAST_MEMORY:
        raise value.position.problem('memory is a size of at least "8m": "512m" or "2g"')
    return size


def cpus(value: KdlValue) -> float:
    """Return a number of processors."""
    plain(value.annotation, value.position)
    number = value.value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= MAX_CPUS:
        raise value.position.problem("cpus is a number above 0, without quotes: cpus=2 or cpus=0.5")
    return float(number)
