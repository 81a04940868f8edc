"""An image as clouds have it: a Debian with cloud-init and a boot loader.

No official image is fetched: it is made of Debian's packages, in a folder of the cache (minutes, about 600 MB). Its
processors are simulated later, so it starts nothing that neither cloud-init nor a job needs.
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
FILES: Final = {
    "boot/grub/grub.cfg": """
set timeout=0
menuentry debian {
    linux /vmlinuz root=LABEL=root rw console=ttyS0 panic=-1 mitigations=off fsck.mode=skip
    initrd /initrd.img
}
""",
    # Without a line for it the root stays as the loader mounted it.
    "etc/fstab": "LABEL=root / ext4 rw 0 0\n",
    # Otherwise the archive of the initramfs has every driver, and each byte of it is read and unpacked.
    "etc/initramfs-tools/conf.d/small": "MODULES=list\n",
    "usr/share/initramfs-tools/modules.d/small": "virtio_pci\nvirtio_blk\next4\n",
    # What an interrupted build wrote is not used.
    "etc/dpkg/dpkg.cfg.d/quickly": "force-unsafe-io\n",
}
MASKED: Final = (
    *(
        "apt-daily.timer",
        "apt-daily-upgrade.timer",
        "dpkg-db-backup.timer",
        "e2scrub_all.timer",
        "fstrim.timer",
    ),
    *("e2scrub_reap.service", "getty@tty1.service", "serial-getty@ttyS0.service", "systemd-pstore.service"),
)
"""What the init system would start beside, in units of systemd."""


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
    for name, content in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(content)
    apt_install(*PACKAGES, root=tree)
    # The first start writes it.
    (tree / "etc/machine-id").write_text("")
    for unit in MASKED:
        (tree / "etc/systemd/system" / unit).symlink_to("/dev/null")
    for fetched in ("var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(tree / fetched)
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
