"""Which VM a job gets, and with which limits."""

from pathlib import Path

import pytest

from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, ServiceSpec
from solstice_orchestrator.domain.jobs import ArtifactSpec, Outcome, Reason
from solstice_orchestrator.worker.executors.vms.vm_images import VmImage
from solstice_orchestrator.worker.executors.vms.vm_plan import (
    MIB,
    OUT_SLACK_BYTES,
    VmPlan,
    VmRules,
    opened_files,
    qemu_command,
    vm_plan,
)
from tests.builders import execution, job, job_request

FOLDER = Path("/srv/debian")
IMAGE = VmImage(folder=FOLDER, kernel=FOLDER / "vmlinuz", initramfs=FOLDER / "initramfs")
RULES = VmRules(images={"linux": IMAGE}, memory_bytes=1000 * MIB, cpus=4, network=NetworkAccess.DEFAULT)
NO_NETWORK = VmRules(images={"linux": IMAGE})


def planned(
    asks: ContainerSpec = ContainerSpec(),  # noqa: B008  a frozen value
    rules: VmRules = RULES,
    *,
    trusted: bool = True,
    label: str = "linux",
) -> VmPlan | Outcome:
    spec = job("true", container=asks, runs_on=label)
    return vm_plan(execution(spec, job_request(trusted=trusted)), rules)


def command(plan: VmPlan | Outcome) -> str:
    assert isinstance(plan, VmPlan)
    return " ".join(qemu_command(plan, "tcg"))


def test_a_job_gets_what_the_operator_gives_unless_it_asks_for_less() -> None:
    assert "-m 1000M -smp 4 " in command(planned())
    assert "-m 512M -smp 2 " in command(planned(ContainerSpec(memory_bytes=512 * MIB, cpus=1.5)))


@pytest.mark.parametrize(
    ("asks", "rules", "label", "sentence"),
    [
        (ContainerSpec(memory_bytes=1001 * MIB), RULES, "linux", "bytes of memory"),
        (ContainerSpec(cpus=4.5), RULES, "linux", "4.5 processors"),
        (ContainerSpec(image="debian:12"), RULES, "linux", "container image debian:12"),
        (ContainerSpec(services=(ServiceSpec(name="db", image="x"),)), RULES, "linux", "services"),
        (ContainerSpec(network=NetworkAccess.DEFAULT), NO_NETWORK, "linux", "VM_NETWORK=none"),
        (ContainerSpec(), RULES, "illumos", "no image of a VM for the label illumos"),
    ],
)
def test_what_is_not_to_be_had_is_refused(
    asks: ContainerSpec, rules: VmRules, label: str, sentence: str
) -> None:
    plan = planned(asks, rules, label=label)
    assert isinstance(plan, Outcome)
    assert plan.reason is Reason.CONTAINER_REFUSED
    assert sentence in plan.detail


@pytest.mark.parametrize(
    ("asks", "rules", "trusted", "has_network"),
    [
        (None, RULES, True, True),
        (NetworkAccess.NONE, RULES, True, False),
        (NetworkAccess.SERVICES_ONLY, RULES, True, False),
        (None, RULES, False, False),
        (NetworkAccess.DEFAULT, RULES, False, False),
        (NetworkAccess.DEFAULT, NO_NETWORK, False, False),
        (None, NO_NETWORK, True, False),
    ],
)
def test_a_vm_has_a_network_only_where_it_is_allowed(
    asks: NetworkAccess | None, rules: VmRules, *, trusted: bool, has_network: bool
) -> None:
    made = command(planned(ContainerSpec(network=asks), rules, trusted=trusted))
    assert ("-nic user" in made) == has_network
    assert ("-nic none" in made) != has_network


def test_qemu_is_closed_in_and_never_writes_into_the_image() -> None:
    with_disk = VmImage(
        folder=FOLDER,
        kernel=FOLDER / "vmlinuz",
        initramfs=FOLDER / "initramfs",
        disk=FOLDER / "disk.qcow2",
        disk_format="qcow2",
    )
    plan = VmPlan(label="linux", image=with_disk, has_network=False, memory_bytes=MIB, cpus=1)
    made = command(plan)
    assert "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny" in made
    assert "-nodefaults -no-user-config" in made
    # The format is given: a guest could write the head of another one.
    assert "format=qcow2,snapshot=on" in made
    assert "file=job.tar,format=raw,read-only=on" in made
    assert "SOLSTICE_ROOT=/dev/vda" in made
    assert "-monitor" not in made
    assert "-accel kvm -cpu host" in " ".join(qemu_command(plan, "kvm"))


@pytest.mark.parametrize("has_network", [True, False])
def test_an_image_that_boots_by_itself_boots_from_nothing_else(*, has_network: bool) -> None:
    itself = VmImage(folder=FOLDER, disk=FOLDER / "disk.qcow2", disk_format="qcow2")
    plan = VmPlan(label="linux", image=itself, has_network=has_network, memory_bytes=MIB, cpus=1)
    made = command(plan)
    assert "-kernel" not in made
    assert "-initrd" not in made
    assert "-boot strict=on" in made
    assert made.count("bootindex=") == 1
    assert "drive=root,werror=report,rerror=report,bootindex=1" in made
    assert "id=seed,if=none,file=seed,format=raw,read-only=on" in made
    assert opened_files(itself) == {101: str(FOLDER / "disk.qcow2")}


def test_only_a_job_with_artifacts_has_a_device_for_them_behind_all_others() -> None:
    assert "solstice-out" not in command(planned())
    spec = job("true", artifacts=(ArtifactSpec(name="a", path="a"), ArtifactSpec(name="b", path="b")))
    plan = vm_plan(execution(spec), VmRules(images={"linux": IMAGE}, artifact_bytes=10 * MIB))
    assert isinstance(plan, VmPlan)
    assert plan.out_bytes == 2 * 10 * MIB + OUT_SLACK_BYTES
    drives = [word for word in qemu_command(plan, "tcg") if "drive=" in word]
    assert [word.partition("drive=")[2].partition(",")[0] for word in drives] == ["job", "out"]
    assert "file=/proc/self/fd/102,format=raw,cache=unsafe" in command(plan)
