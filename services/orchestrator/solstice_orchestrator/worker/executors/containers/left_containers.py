"""Remove the containers that a killed orchestrator left; this one may have another executor."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes.supervisor import process_ids
from solstice_orchestrator.worker.executors.containers.container_groups import remove_groups
from solstice_orchestrator.worker.executors.containers.container_plan import LABEL
from solstice_orchestrator.worker.executors.containers.podman import Podman, passed_on

LOG = structlog.get_logger(__name__)

CONTROL: Final = "control"
"""The pipe in the directory of each attempt that had a container."""
BASE: Final = "base"
"""The file beside it that names the control group above its own."""
CREATION_SECONDS: Final = 60.0
"""How long a podman may still run that a killed orchestrator had started."""
REMOVALS: Final = 6
"""How often a removal is tried: it fails once for each monitor that was killed, and notes that.

A container cannot be removed before the services that are in its network.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftContainers:
    """Finds containers by a label with the directory of their orchestrator."""

    podman: Podman

    async def remove(self, directory: Path) -> bool:
        """Remove all containers of the dead orchestrator of a directory.

        Return False to be called again. Where it had none, or podman is not there any more, this removes the control
        groups of its attempts alone, which VMs have too.
        """
        if not await asyncio.to_thread(_had_containers, directory):
            await asyncio.to_thread(_remove_groups, directory)
            return True
        try:
            problem = await self._remove(directory)
        except OSError as error:
            LOG.warning(LogEvent.CONTAINER_NOT_REMOVED, container=f"those of {directory}", detail=str(error))
            problem = None
        if problem:
            LOG.error(LogEvent.CONTAINER_NOT_REMOVED, container=f"those of {directory}", detail=problem)
            return False
        await asyncio.to_thread(_remove_groups, directory)
        return True

    async def _remove(self, directory: Path) -> str | None:
        """Return what keeps containers from their end."""
        await asyncio.to_thread(_wait_for_creations, directory)
        problem = None
        for _ in range(REMOVALS):
            found = await self.podman.run("ps", "--all", "--quiet", f"--filter=label={LABEL}={directory}")
            if found.code:
                return found.problem
            left = found.output.split()
            if not left:
                return None
            removed = await self.podman.run("rm", "--force", "--time=0", "--volumes", "--ignore", *left)
            if not removed.code:
                LOG.info(LogEvent.CONTAINERS_SWEPT, directory=str(directory), count=len(left))
                return None
            problem = removed.problem
        return problem


def _remove_groups(directory: Path) -> None:
    for base in {"", *(file.read_text() for file in directory.glob(f"*/{BASE}"))}:
        remove_groups(directory.name, base=base)


def _had_containers(directory: Path) -> bool:
    return any(directory.glob(f"*/{CONTROL}"))


def _wait_for_creations(directory: Path) -> None:
    """Wait for the podman of a killed orchestrator that is about to create a container."""
    label, deadline = f"={LABEL}={directory}\0".encode(), time.monotonic() + CREATION_SECONDS
    while any(label in _command_of(pid) for pid in process_ids()) and time.monotonic() < deadline:
        time.sleep(0.05)


def _command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def left_containers(environ: Mapping[str, str]) -> LeftContainers:
    """Return what removes containers with the podman of this environment."""
    return LeftContainers(podman=Podman(environment=passed_on(environ)))
