"""Decide how much of the machine QEMU itself may use. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from solstice_orchestrator.worker.executors.vms.vm_plan import MIB, TCG_CACHE_MIB, Accelerator, VmPlan

CONTROLLERS: Final = ("memory", "cpu", "pids")
OVERHEAD_BYTES: Final = 256 * MIB
"""What QEMU needs beside the memory of its guest. What it reads and writes of files may be in memory too, and gives way."""
TASKS: Final = 256
"""Threads of QEMU: one for each processor, some more, and up to 64 for reads and writes of disks."""
PERIOD: Final = 100_000
"""Microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VmLimits:
    """What QEMU may use in all."""

    memory_bytes: int
    cpus: int
    tasks: int = TASKS


class LimitFile(NamedTuple):
    """What is written into a file of a control group."""

    name: str
    value: str
    is_needed: bool = True
    """False: a kernel may lack this file."""


def limits_of(plan: VmPlan, accelerator: Accelerator) -> VmLimits:
    """Return the limits of the QEMU of this VM."""
    translated = TCG_CACHE_MIB * MIB if accelerator == "tcg" else 0
    return VmLimits(memory_bytes=plan.memory_bytes + OVERHEAD_BYTES + translated, cpus=plan.cpus)


def limit_files(limits: VmLimits, controller: str, *, unified: bool) -> Sequence[LimitFile]:
    """Return what a controller's files get; `unified` is version 2 of the interface."""
    # The kernel rounds down to whole pages.
    memory, quota = str(limits.memory_bytes // 4096 * 4096), limits.cpus * PERIOD
    match controller:
        case "memory" if unified:
            return (LimitFile("memory.max", memory), LimitFile("memory.swap.max", "0", is_needed=False))
        case "memory":
            return (
                LimitFile("memory.limit_in_bytes", memory),
                LimitFile("memory.memsw.limit_in_bytes", memory, is_needed=False),
            )
        case "cpu" if unified:
            return (LimitFile("cpu.max", f"{quota} {PERIOD}"),)
        case "cpu":
            return (LimitFile("cpu.cfs_period_us", str(PERIOD)), LimitFile("cpu.cfs_quota_us", str(quota)))
        case _:
            return (LimitFile("pids.max", str(limits.tasks)),)
