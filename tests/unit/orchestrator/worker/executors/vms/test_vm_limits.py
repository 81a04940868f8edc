"""How much of the machine QEMU itself may use."""

from solstice_orchestrator.worker.executors.vms.vm_limits import CONTROLLERS, VmLimits, limit_files, limits_of
from solstice_orchestrator.worker.executors.vms.vm_plan import MIB, VmPlan
from tests.unit.orchestrator.worker.executors.vms.test_vm_plan import IMAGE

PLAN = VmPlan(label="linux", image=IMAGE, has_network=False, memory_bytes=1024 * MIB, cpus=2)


def written(limits: VmLimits, *, unified: bool) -> dict[str, str]:
    return {
        name: value
        for controller in CONTROLLERS
        for name, value, _ in limit_files(limits, controller, unified=unified)
    }


def test_qemu_may_use_what_its_guest_has_and_some_more() -> None:
    assert limits_of(PLAN, "kvm") == VmLimits(memory_bytes=1280 * MIB, cpus=2)
    assert limits_of(PLAN, "tcg") == VmLimits(memory_bytes=1408 * MIB, cpus=2)


def test_limits_have_other_names_in_each_version_of_control_groups() -> None:
    limits = VmLimits(memory_bytes=8193, cpus=2, tasks=9)
    assert written(limits, unified=True) == {
        "memory.max": "8192",
        "memory.swap.max": "0",
        "cpu.max": "200000 100000",
        "pids.max": "9",
    }
    assert written(limits, unified=False) == {
        "memory.limit_in_bytes": "8192",
        "memory.memsw.limit_in_bytes": "8192",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "200000",
        "pids.max": "9",
    }
