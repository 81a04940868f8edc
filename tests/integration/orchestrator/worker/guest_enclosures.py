"""Runs QEMU within limits that it does not keep, in a guest.

`guest_program limits` prints how each ended, as root and as another user. The processors of QEMU's own guest stand still.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from solstice_orchestrator.worker.executors.containers.container_groups import groups_left
from solstice_orchestrator.worker.executors.vms.enclosures import Enclosure, find_enclosure
from solstice_orchestrator.worker.executors.vms.vm_directory import PATH
from solstice_orchestrator.worker.executors.vms.vm_limits import VmLimits
from solstice_orchestrator.worker.executors.vms.vm_plan import COMMAND, MIB

RESULT = "RESULT "
LIMITS = VmLimits(memory_bytes=256 * MIB, cpus=1)
MEMORIES = {"within": 16 * MIB, "beyond": 320 * MIB}
"""Of guests, all of which QEMU writes to when it starts."""
PLACE = "vms"


async def print_ends() -> None:
    """Print how QEMU ends whose guest has one of the memories."""
    enclosure = await find_enclosure(PATH, has_network=False)
    ends = {
        name: await asyncio.to_thread(_end_of_qemu, enclosure, name, size) for name, size in MEMORIES.items()
    }
    facts = {"user": os.geteuid(), "bounds": enclosure.bounds, "lacks": enclosure.lacks, "ends": ends}
    # In one write: the kernel writes, too.
    os.write(1, f"\n{RESULT}{json.dumps(facts)}\n".encode())


def _end_of_qemu(enclosure: Enclosure, attempt: str, size: int) -> dict[str, Any]:
    groups = enclosure.make(PLACE, attempt, LIMITS)
    command = (
        *enclosure.command(groups, None, (), has_network=False),
        *(COMMAND, "-S", "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "stdio"),
        *("-object", f"memory-backend-ram,id=ram,size={size},prealloc=on"),
        *("-machine", "q35,accel=tcg,memory-backend=ram", "-m", f"{size // MIB}M"),
    )
    ended = subprocess.run(
        command, input="quit\n", env={"PATH": PATH}, capture_output=True, text=True, check=False
    )
    has_lacked = enclosure.has_lacked_memory(PLACE, attempt)
    limit = {Path(group, "memory.max").read_text().strip() for group in groups.values()}
    enclosure.remove(PLACE, attempt)
    return {
        "code": ended.returncode,
        "words": ended.stderr,
        "limit": sorted(limit),
        "has_lacked_memory": has_lacked,
        "left": [str(group) for group in groups_left(PLACE, attempt, enclosure.base)],
    }
