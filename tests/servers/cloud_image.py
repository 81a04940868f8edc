"""An image as clouds have it: a Debian with cloud-init and a boot loader.

No official image is fetched: it is made of Debian's packages, in a folder of the cache (minutes, about 600 MB).
"""

import shutil
import struct
from pathlib import Path
from typing import Final

from tests.servers.apt import apt_can_install, apt_install, cache_directory, locked, run
from tests.servers.guest_kernel import QEMU
from tests.servers.newer_debian import bootstrap

SUITE: Final = "bookworm"
PACKAGES: Final = ("systemd-sysv", "udev", "iproute2", "cloud-init", "linux-image-cloud-amd64", "grub-pc-bin")
TOOLS: Final = {"qemu-img": "qemu-utils", QEMU: "qemu-system-x86"}
SECTOR: Final = 512
FIRST_SECTOR: Final = 2048
DISK_MIB: Final = 2048
LOADER: Final = "usr/lib/grub/i386-pc/boot.img"
CORE: Final = "core.img"
MODULES: Final = "biosdisk part_msdos ext2 normal linux"
LOADER_CONFIGURATION: Final = """
set timeout=0
menuentry debian {
    linux /vmlinuz root=LABEL=root ro console=ttyS0
    initrd /initrd.img
}
"""


def why_no_cloud_image() -> str | None:
    """Why there can be no such image here; None when there can."""
    if not apt_can_install():
        return "it is made as root on Debian"
    return None


def cloud_image() -> Path:
    """The folder of the image, with one file: disk.qcow2."""
    folder = cache_directory() / "cloud-image"
    with locked(folder.name):
        if missing := [package for tool, package in TOOLS.items() if shutil.which(tool) is None]:
            apt_install(*missing)
        if not folder.exists():
            building = folder.with_name(f"{folder.name}.building")
            shutil.rmtree(building, ignore_errors=True)
            _build(building)
            building.rename(folder)
    return folder


def _build(folder: Path) -> None:
    tree, raw = folder / "tree", folder / "disk.raw"
    folder.mkdir()
    bootstrap(SUITE, tree)
    apt_install(*PACKAGES, root=tree)
    shutil.rmtree(tree / "var/cache/apt")
    (tree / "boot/grub").mkdir(exist_ok=True)
    (tree / "boot/grub/grub.cfg").write_text(LOADER_CONFIGURATION)
    (tree / "etc/machine-id").write_text("")
    core = ("grub-mkimage", "-O", "i386-pc", "-p", "(hd0,msdos1)/boot/grub", "-o", f"/{CORE}")
    run("chroot", str(tree), *core, *MODULES.split())
    with raw.open("wb") as disk:
        disk.truncate(DISK_MIB * 1024 * 1024)
    place = f"offset={FIRST_SECTOR * SECTOR}"
    size = f"{DISK_MIB - 1}M"
    # A boot loader of Debian 12 does not know what newer tools turn on.
    run(
        "mkfs.ext4",
        "-q",
        "-L",
        "root",
        "-E",
        place,
        "-O",
        "^metadata_csum_seed",
        "-d",
        str(tree),
        str(raw),
        size,
    )
    _write_loader(raw, (tree / LOADER).read_bytes(), (tree / CORE).read_bytes())
    run("qemu-img", "convert", "-O", "qcow2", str(raw), str(folder / "disk.qcow2"))
    raw.unlink()
    shutil.rmtree(tree)


def _write_loader(disk: Path, loader: bytes, core: bytes) -> None:
    """Write the loader with the table of partitions, and its core behind it."""
    last = DISK_MIB * 1024 * 1024 // SECTOR
    partition = struct.pack("<B3sB3sII", 0x80, bytes(3), 0x83, bytes(3), FIRST_SECTOR, last - FIRST_SECTOR)
    table = partition.ljust(64, b"\0") + b"\x55\xaa"
    with disk.open("r+b") as file:
        file.write(loader[: SECTOR - len(table)] + table + core)
