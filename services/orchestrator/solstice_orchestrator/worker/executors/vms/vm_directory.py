"""Make the directory of an attempt's VM, from which `vm_host.py` starts QEMU."""

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from solstice_orchestrator.worker.executors.containers.container_plan import user_of
from solstice_orchestrator.worker.executors.containers.left_containers import BASE
from solstice_orchestrator.worker.executors.vms.cloud_seed import cloud_seed
from solstice_orchestrator.worker.executors.vms.enclosures import Enclosure
from solstice_orchestrator.worker.executors.vms.initramfs import initramfs
from solstice_orchestrator.worker.executors.vms.vm_limits import limits_of
from solstice_orchestrator.worker.executors.vms.vm_plan import (
    INITRAMFS,
    OUT,
    OUT_FD,
    SEED,
    Accelerator,
    VmPlan,
    opened_files,
    qemu_command,
)

AGENT: Final = Path(__file__).with_name("guest_agent.sh")
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KVM: Final = Path("/dev/kvm")
MARK: Final = "SOLSTICE_PLACE"
"""The variable by which processes are found that lost their supervisor (`workspaces.kill_marked`)."""


def make_vm_directory(
    root: Path,
    plan: VmPlan,
    accelerator: Accelerator,
    enclosure: Enclosure,
    *,
    directories: Mapping[str, Path],
    seconds: float,
) -> Path:
    """Make the directory of a VM in that of its attempt, and its control groups.

    The guest gets copies of `directories`, by their places there. Where we are root, QEMU is a user of its own.

    Raises OSError.
    """
    directory = root / "vm"
    disk = directory / "disk"
    for each in (directory, disk):
        each.mkdir(mode=0o700)
    user = user_of(root.name) if os.geteuid() == 0 else None
    if user is not None:
        os.chown(disk, user, user)
    opened = dict(opened_files(plan.image))
    if plan.out_bytes:
        opened[OUT_FD] = str(_out_device(directory, plan.out_bytes, user))
    if enclosure.base:
        # For the sweep after a kill.
        (root / BASE).write_text(enclosure.base)
    groups = enclosure.make(root.parent.name, root.name, limits_of(plan, accelerator))
    enclosed = enclosure.command(groups, user, _groups_of_kvm(), has_network=plan.has_network)
    spec = {
        "command": [*enclosed, *qemu_command(plan, accelerator)],
        "seconds": seconds,
        "env": {"PATH": PATH, "TMPDIR": ".", MARK: f"{root}/"},
        "directories": {place: str(each) for place, each in directories.items()},
        "opened": opened,
        "files": _written_files(directory, plan),
    }
    (directory / "vm.json").write_text(json.dumps(spec), encoding="utf-8")
    return directory


def _out_device(directory: Path, size: int, user: int | None) -> Path:
    """Make the empty device for artifacts.

    QEMU may write to it and cannot replace it: it gets it opened, and may not enter its folder.
    """
    path = directory / OUT
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, size)
        if user is not None:
            os.fchown(descriptor, user, user)
    finally:
        os.close(descriptor)
    return path


def _written_files(directory: Path, plan: VmPlan) -> dict[str, list[str]]:
    """Write what brings our agent into the VM.

    Return the files of QEMU's directory, each with those that it is made of.
    """
    agent = directory / "agent"
    if plan.image.initramfs is None:
        attempt = directory.parent.name
        agent.write_bytes(cloud_seed(attempt, AGENT.read_text(), has_network=plan.has_network))
        return {SEED: [str(agent)]}
    agent.write_bytes(initramfs({"init": AGENT.read_bytes()}))
    return {INITRAMFS: [str(plan.image.initramfs), str(agent)]}


def _groups_of_kvm() -> list[int]:
    """Return the group that may use KVM, where that is not root's alone."""
    with contextlib.suppress(OSError):
        status = KVM.stat()
        if status.st_mode & stat.S_IWGRP and status.st_gid != 0:
            return [status.st_gid]
    return []
