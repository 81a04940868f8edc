"""A small machine in QEMU, whose kernel may have more than that of this machine.

Its kernel is Debian's; its files are those of this machine, which it cannot change. Memory is mounted at /mnt, /run,
/var/tmp and /dev/shm, and control groups of version 2 at /sys/fs/cgroup. No KVM is needed, and none is used: a
`/dev/kvm` that opens may hang nevertheless.
"""

import gzip
import os
import subprocess
from pathlib import Path
from typing import Final

from solstice_orchestrator.worker.executors.vms.initramfs import initramfs
from tests.servers.guest_kernel import BUSYBOX, KERNEL, QEMU, GuestKernel

GUEST_KERNEL: Final = GuestKernel(
    name="guest-kernel",
    package="linux-image-amd64",
    modules=("virtio_pci", "9pnet_virtio", "9p", "overlay"),
)
MEMORY_MIB: Final = 1536
QUICKLY: Final = "mitigations=off apparmor=0 audit=0 random.trust_cpu=on rcupdate.rcu_expedited=1"
"""Nothing in the guest is worth protection from its programs, and each of these costs simulated instructions."""
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
    if os.geteuid() != 0:
        return "it needs root, to see all files of this machine"
    return GUEST_KERNEL.why_not()


def run_in_guest(script: Path, *, seconds: float) -> str:
    """Run a script of /bin/sh in a new guest, and return what was written there.

    While it runs, that is in a file beside the script, with the suffix `.console`. Raises TimeoutExpired.
    """
    folder = GUEST_KERNEL.folder()
    archive = script.with_name(f"{script.name}.initramfs")
    archive.write_bytes(gzip.compress(_initramfs(folder), compresslevel=1))
    console = script.with_name(f"{script.name}.console")
    command = (
        *("setpriv", "--pdeathsig", "KILL", QEMU),
        *("-machine", "q35", "-accel", "tcg", "-cpu", "qemu64,+rdrand"),
        # With two, each waits for the other where a busy host gives it no time, and both cost two fifths more.
        *("-smp", "1", "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-nic", "none", "-serial", f"file:{console}"),
        *("-kernel", str(folder / KERNEL), "-initrd"),
        *(
            str(archive),
            "-append",
            f"console=ttyS0 quiet panic=-1 cgroup_no_v1=all {QUICKLY} GUEST_SCRIPT={script}",
        ),
        *("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
    )
    nowhere = subprocess.DEVNULL
    try:
        subprocess.run(command, stdin=nowhere, stdout=nowhere, timeout=seconds, check=True)
    except subprocess.TimeoutExpired as late:
        late.add_note(_lines_of(console))
        raise
    return _lines_of(console)


def _lines_of(console: Path) -> str:
    return console.read_text(errors="replace").replace("\r\n", "\n")


def _initramfs(folder: Path) -> bytes:
    modules = {f"modules/{file.name}": file.read_bytes() for file in sorted(folder.glob("*.ko"))}
    programs = {"init": INIT.encode(), BUSYBOX: (folder / "busybox").read_bytes()}
    return initramfs(programs | modules, ["bin", "dev", "host", "modules", "proc"])
