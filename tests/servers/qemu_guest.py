"""A small machine in QEMU, whose kernel may have more than that of this machine.

Its kernel is Debian's; its files are those of this machine, which it cannot change. Memory is mounted at /mnt, /run,
/var/tmp and /dev/shm, and control groups of version 2 at /sys/fs/cgroup. No KVM is needed, and none is used: a
`/dev/kvm` that opens may hang all the same.
"""

import gzip
import lzma
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.servers.apt import apt_can_install, apt_install, cache_directory, locked, run

PACKAGE: Final = "linux-image-amd64"
KERNEL: Final = "vmlinuz"
MODULES: Final = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
MEMORY_MIB: Final = 1536
BUSYBOX: Final = "bin/busybox"
INIT: Final = """#!/bin/busybox sh
PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod "$module"; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose host /host
mount -t proc proc /host/proc
mount -t sysfs sys /host/sys
mount -t devtmpfs dev /host/dev
mkdir -p /host/dev/pts /host/dev/shm
mount -t devpts devpts /host/dev/pts
for each in dev/shm run mnt var/tmp; do mount -t tmpfs none "/host/$each"; done
mount -t cgroup2 none /host/sys/fs/cgroup
ifconfig lo up
cp /bin/busybox /host/run/busybox
# Not chroot, in which no namespace of users can be made.
exec switch_root /host /bin/sh -c 'mount --make-rshared /; /bin/sh "$GUEST_SCRIPT"; /run/busybox poweroff -f'
"""


def why_no_guest() -> str | None:
    """Why there can be no guest here; None when there can."""
    if platform.machine() != "x86_64":
        return "its kernel is one for x86_64"
    if os.geteuid() != 0:
        return "it needs root, to see all files of this machine"
    if not _has_kernel() and not _apt_has_kernel():
        return f"there is no package {PACKAGE}, as Debian has it"
    if shutil.which("qemu-system-x86_64") is None and not apt_can_install():
        return "it needs qemu-system-x86_64"
    return None


def run_in_guest(script: Path, *, seconds: float) -> str:
    """Run a script of /bin/sh in a new guest, and return what was written there.

    Raises TimeoutExpired.
    """
    folder = _kernel_folder()
    initramfs = script.with_name(f"{script.name}.initramfs")
    initramfs.write_bytes(gzip.compress(_initramfs(folder), compresslevel=1))
    command = (
        *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),
        *("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand"),
        *("-smp", "2", "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-nic", "none", "-serial", "stdio", "-kernel", str(folder / KERNEL), "-initrd"),
        *(str(initramfs), "-append", f"console=ttyS0 quiet panic=-1 cgroup_no_v1=all GUEST_SCRIPT={script}"),
        *("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
    )
    ran = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=True
    )
    return ran.stdout.replace("\r\n", "\n")


def _folder() -> Path:
    return cache_directory() / "guest-kernel"


def _has_kernel() -> bool:
    return _folder().exists()


def _apt_has_kernel() -> bool:
    return apt_can_install() and bool(_kernel_package())


def _kernel_package() -> str | None:
    """The package that has the kernel itself."""
    command = ["apt-cache", "depends", "--important", PACKAGE]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"Depends: (linux-image-\S+)", listed)
    return found[1] if found else None


def _kernel_folder() -> Path:
    """The folder of the cache with the kernel, its modules and a busybox."""
    folder = _folder()
    with locked(folder.name):
        if shutil.which("qemu-system-x86_64") is None:
            apt_install("qemu-system-x86")
        if not folder.exists():
            building = folder.with_name(f"{folder.name}.building")
            shutil.rmtree(building, ignore_errors=True)
            _build(building)
            building.rename(folder)
    return folder


def _build(folder: Path) -> None:
    packages = folder / "packages"
    packages.mkdir(parents=True)
    run("apt-get", "update", "-q", check=False)
    package = _kernel_package()
    if package is None:
        raise RuntimeError(f"apt knows no kernel for {PACKAGE}")
    # Unpacked, not installed: this machine starts with its own kernel.
    fetch = 'cd "$1"; shift; apt-get -o APT::Sandbox::User=root download "$@"; '
    unpack = 'for each in *.deb; do dpkg-deb --extract "$each" .; done'
    run("sh", "-ec", fetch + unpack, "sh", str(packages), package, "busybox-static")
    (kernel,) = packages.glob("boot/vmlinuz-*")
    kernel.rename(folder / KERNEL)
    (packages / BUSYBOX).rename(folder / "busybox")
    for number, (name, content) in enumerate(_in_order(packages)):
        (folder / f"{number:03}-{name}.ko").write_bytes(content)
    shutil.rmtree(packages)


def _initramfs(folder: Path) -> bytes:
    files = {"init": INIT.encode(), BUSYBOX: (folder / "busybox").read_bytes()}
    modules = {f"modules/{file.name}": file.read_bytes() for file in sorted(folder.glob("*.ko"))}
    return _archive(files | modules)


def _in_order(root: Path) -> Iterator[tuple[str, bytes]]:
    """The modules, each after those that it needs."""
    found = {file.name.partition(".ko")[0].replace("-", "_"): file for file in root.rglob("*.ko*")}
    yielded = set[str]()

    def with_needed(name: str) -> Iterator[tuple[str, bytes]]:
        # What is not there is a part of the kernel itself.
        if name in yielded or name not in found:
            return
        yielded.add(name)
        content = found[name].read_bytes()
        if found[name].suffix == ".xz":
            content = lzma.decompress(content)
        needed = re.search(rb"\0depends=([^\0]*)", content)
        for each in needed[1].decode().split(",") if needed else ():
            yield from with_needed(each.replace("-", "_"))
        yield name, content

    for module in MODULES:
        yield from with_needed(module)


def _archive(files: Mapping[str, bytes]) -> bytes:
    """An archive in the format `newc` of cpio, which the kernel unpacks."""
    folders = ["bin", "dev", "host", "modules", "proc"]
    entries = [*((folder, 0o040755, b"") for folder in folders)]
    entries += [(name, 0o100755, content) for name, content in files.items()]
    packed = b"".join(_entry(number, *entry) for number, entry in enumerate(entries, start=1))
    return packed + _entry(0, "TRAILER!!!", 0, b"")


def _entry(inode: int, name: str, mode: int, content: bytes) -> bytes:
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _filled(head) + _filled(content)


def _filled(part: bytes) -> bytes:
    return part + b"\0" * (-len(part) % 4)
