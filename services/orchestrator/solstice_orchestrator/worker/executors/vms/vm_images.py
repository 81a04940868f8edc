"""Read which images of VMs there are, and what is in each."""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from solstice_common.errors import ConfigurationError
from solstice_orchestrator.domain.label_map import parse_image_folders

KERNEL: Final = "vmlinuz"
INITRAMFS: Final = "initramfs"
DISKS: Final[Mapping[str, str]] = MappingProxyType({"disk.qcow2": "qcow2", "disk.raw": "raw"})
"""The formats by name: the first bytes of a disk are the work of a guest, and decide nothing."""
ROOT: Final = "root"
"""The file that names the device of the root file system, for a disk with partitions."""
_DEVICE: Final = re.compile(r"(?:/dev/[a-z0-9]+|(?:LABEL|UUID)=[A-Za-z0-9._-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class VmImage:
    """What a VM starts from; no attempt changes it."""

    folder: Path
    kernel: Path | None = None
    """None: the disk has its own, and boots by itself; cloud-init starts our agent."""
    initramfs: Path | None = None
    """Has a shell, and the modules that the kernel needs."""
    disk: Path | None = None
    """Its root file system; None: the initramfs is all there is."""
    disk_format: str = "raw"
    root: str = "/dev/vda"
    """The device of the root file system on the disk."""


def read_vm_images(text: str) -> Mapping[str, VmImage]:
    """Return the image of each label. Raises ConfigurationError, which names what is missing."""
    return {label: _image(label, Path(folder)) for label, folder in parse_image_folders(text).items()}


def _image(label: str, folder: Path) -> VmImage:
    disk = next((folder / name for name in DISKS if (folder / name).exists()), None)
    boots_itself = disk is not None and not any((folder / name).exists() for name in (KERNEL, INITRAMFS))
    parts = [] if boots_itself else [folder / KERNEL, folder / INITRAMFS]
    for file in (*parts, *([disk] if disk else [])):
        # QEMU is another user than an orchestrator that is root.
        if not os.access(file, os.R_OK) or (os.geteuid() == 0 and not file.stat().st_mode & stat.S_IROTH):
            raise ConfigurationError(
                f"VM_IMAGES: the image of {label} needs a file {file} that every user may read"
            )
    root = "/dev/vda"
    if (folder / ROOT).exists():
        if boots_itself:
            raise ConfigurationError(
                f"VM_IMAGES: {folder} has no {KERNEL}, so its disk boots by itself and finds its own root: remove {folder / ROOT}"
            )
        root = (folder / ROOT).read_text(errors="replace").strip()
        if not _DEVICE.fullmatch(root):
            raise ConfigurationError(f"VM_IMAGES: {folder / ROOT} names no device, as /dev/vda1 does")
    return VmImage(
        folder=folder,
        kernel=None if boots_itself else folder / KERNEL,
        initramfs=None if boots_itself else folder / INITRAMFS,
        disk=disk,
        disk_format=DISKS[disk.name] if disk else "raw",
        root=root,
    )
