"""Decide which VM a job gets, and the arguments of QEMU that make it. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from solstice_common.messages import Source
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.domain.trust import V1_TRUST, is_trusted
from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.executors.vms.vm_images import VmImage

MIB: Final = 1024 * 1024
COMMAND: Final = "qemu-system-x86_64"
SANDBOX: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
TCG_CPU: Final = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+rdrand"
"""The level x86-64-v2, for which current distributions are built; `max` costs twice the time."""
TCG_CACHE_MIB: Final = 128
"""For translated code. QEMU would take a gigabyte."""
ARCHIVE: Final = "job.tar"
INITRAMFS: Final = "initramfs"
SEED: Final = "seed"
OUT: Final = "out"
CHANNELS: Final = ("control", "log")
KERNEL_FD: Final = 100
DISK_FD: Final = 101
OUT_FD: Final = 102
OUT_SLACK_BYTES: Final = 64 * MIB
"""Of the device for artifacts: for the ends of its archives, and for files that do not fit after all."""
Accelerator = Literal["kvm", "tcg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VmRules:
    """The operator's settings for VMs."""

    images: Mapping[str, VmImage] = field(default_factory=lambda: MappingProxyType({}))
    """By label."""
    network: NetworkAccess = NetworkAccess.NONE
    memory_bytes: int = 2048 * MIB
    """What a job gets, and the most that it may ask for."""
    cpus: float = 2.0
    """The same for processors."""
    start_seconds: float = 120.0
    """How long a VM may take until it is ready for the first step."""
    artifact_bytes: int = 1024 * MIB
    """The most that an artifact may have."""
    v1_trust: frozenset[Source] = V1_TRUST
    """Sources whose requests are trusted when they do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VmPlan:
    """The VM of one attempt."""

    label: str
    image: VmImage
    has_network: bool
    memory_bytes: int
    cpus: int
    """Whole processors: a guest has no half ones."""
    out_bytes: int = 0
    """The size of its device for artifacts; 0: it has none."""


def vm_plan(execution: Execution, rules: VmRules) -> VmPlan | Outcome:
    """Return the job's VM, or its failure if it may not have one."""
    label, requested = execution.spec.runs_on, execution.spec.container
    image = rules.images.get(label)
    if image is None:
        return refused(f"this worker has no image of a VM for the label {label} (VM_IMAGES)")
    network = NetworkAccess.NONE
    # Code of strangers reaches no network; its workflow file cannot change that.
    if is_trusted(execution.request, rules.v1_trust):
        network = requested.network or rules.network
    if refusal := _refusal(label, requested, rules, network):
        return refused(refusal)
    return VmPlan(
        label=label,
        image=image,
        has_network=network is NetworkAccess.DEFAULT,
        memory_bytes=requested.memory_bytes or rules.memory_bytes,
        cpus=math.ceil(requested.cpus or rules.cpus),
        out_bytes=len(execution.spec.artifacts) * rules.artifact_bytes + OUT_SLACK_BYTES
        if execution.spec.hands_out
        else 0,
    )


def _refusal(label: str, requested: ContainerSpec, rules: VmRules, network: NetworkAccess) -> str:
    """Return what a job asks for and may not have."""
    if requested.image is not None:
        return (
            f"the job asks for the container image {requested.image}, and jobs of the label {label} run in VMs, whose "
            "image the operator chooses (EXECUTOR=qemu); let it run where EXECUTOR=podman"
        )
    if requested.services:
        return "the job has services, and VMs have none (EXECUTOR=qemu); let it run where EXECUTOR=podman"
    if (requested.memory_bytes or 0) > rules.memory_bytes:
        return f"the job asks for {requested.memory_bytes} bytes of memory; a job here may have {rules.memory_bytes}"
    if (requested.cpus or 0) > rules.cpus:
        return f"the job asks for {requested.cpus:g} processors; a job here may have {rules.cpus:g}"
    if network is NetworkAccess.DEFAULT and rules.network is not NetworkAccess.DEFAULT:
        return "the job asks for a network, and VMs on this worker have none (VM_NETWORK=none)"
    return ""


def refused(detail: str) -> Outcome:
    """Return the failure of a job whose VM is not to be had here."""
    return Outcome(state=JobState.FAILED, reason=Reason.CONTAINER_REFUSED, detail=detail)


def opened_files(image: VmImage) -> Mapping[int, str]:
    """Return the files that QEMU gets opened, by the numbers of their descriptors.

    It is a user of its own, and cannot enter every folder.
    """
    files = {KERNEL_FD: image.kernel, DISK_FD: image.disk}
    return {number: str(file) for number, file in files.items() if file}


def qemu_command(plan: VmPlan, accelerator: Accelerator) -> Sequence[str]:
    """Return the command of QEMU, without the ends of its channels.

    These are `control`, `log` and `console`. Files without a folder are in its working directory. The image's disk is only read: QEMU writes what the guest
    changes into a file without a name there.
    """
    accelerators = {
        "kvm": ("-accel", "kvm", "-cpu", "host"),
        "tcg": ("-accel", f"tcg,thread=multi,tb-size={TCG_CACHE_MIB}", "-cpu", TCG_CPU),
    }
    return (
        *(COMMAND, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-sandbox", SANDBOX),
        *("-name", "solstice", "-machine", "q35", *accelerators[accelerator]),
        *("-m", f"{max(1, plan.memory_bytes // MIB)}M", "-smp", str(plan.cpus)),
        *(_kernel(plan) if plan.image.kernel else _seed()),
        *(_root_disk(plan.image) if plan.image.disk else ()),
        *_drive("job", f"file={ARCHIVE},format=raw,read-only=on", ",serial=solstice-job"),
        *(_out_device() if plan.out_bytes else ()),
        *("-device", "virtio-serial-pci", "-serial", "chardev:console"),
        *(word for channel in CHANNELS for word in _port(channel)),
        *("-nic", "user,model=virtio-net-pci,ipv6=off" if plan.has_network else "none"),
    )


def _kernel(plan: VmPlan) -> Sequence[str]:
    """Return the arguments for a kernel that QEMU loads itself."""
    arguments = [
        *("quiet", "panic=-1", "console=ttyS0", "random.trust_cpu=on"),
        *([f"SOLSTICE_ROOT={plan.image.root}"] if plan.image.disk else []),
        *(["SOLSTICE_NETWORK=user"] if plan.has_network else []),
    ]
    return ("-kernel", _opened(KERNEL_FD), "-initrd", INITRAMFS, "-append", " ".join(arguments))


def _seed() -> Sequence[str]:
    """Return the arguments that let a disk boot by itself, with its seed."""
    return ("-boot", "strict=on", *_drive("seed", f"file={SEED},format=raw,read-only=on"))


def _root_disk(image: VmImage) -> Sequence[str]:
    file = f"file={_opened(DISK_FD)},format={image.disk_format}"
    return _drive("root", f"{file},snapshot=on,cache=unsafe", ",bootindex=1" if image.kernel is None else "")


def _out_device() -> Sequence[str]:
    # Behind the others, whose names in the VM do not change by it. Our side reads what QEMU has written, before any disk has it.
    file = f"file={_opened(OUT_FD)},format=raw,cache=unsafe"
    return _drive("out", file, ",serial=solstice-out")


def _drive(name: str, options: str, more: str = "") -> Sequence[str]:
    """Return the arguments for a disk; `more` are those of its device."""
    device = f"virtio-blk-pci,drive={name},werror=report,rerror=report{more}"
    return ("-drive", f"id={name},if=none,{options}", "-device", device)


def _port(channel: str) -> Sequence[str]:
    return ("-device", f"virtserialport,chardev={channel},name=solstice.{channel}")


def _opened(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
