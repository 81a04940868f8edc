"""The image of VMs for tests: Debian's kernel for clouds, and a busybox."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from solstice_orchestrator.worker.executors.vms.initramfs import initramfs
from solstice_orchestrator.worker.executors.vms.vm_images import INITRAMFS
from tests.servers.guest_kernel import BUSYBOX, KERNEL, GuestKernel

VM_KERNEL: Final = GuestKernel(
    name="vm-kernel-with-network",
    package="linux-image-cloud-amd64",
    modules=("virtio_pci", "virtio_blk", "virtio_console", "virtio_net"),
)


def why_no_vm() -> str | None:
    """Why no VM can run here; None when one can."""
    return VM_KERNEL.why_not()


def vm_image(folder: Path, *, disk: bool = False) -> Path:
    """Make an image in `folder`; with `disk`, its root is one with /bin and /etc/image."""
    kernel = VM_KERNEL.folder()
    folder.mkdir(parents=True)
    shutil.copy(kernel / KERNEL, folder / KERNEL)
    busybox = kernel / "busybox"
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    links = {f"bin/{each}": "busybox" for each in applets if each != "busybox"}
    modules = {f"modules/{file.name}": file.read_bytes() for file in sorted(kernel.glob("*.ko"))}
    programs = {BUSYBOX: busybox.read_bytes(), **modules}
    (folder / INITRAMFS).write_bytes(initramfs(programs, ["bin", "dev", "etc", "modules"], links))
    if disk:
        _make_disk(folder, busybox, links)
    folder.chmod(0o755)
    return folder


def _make_disk(folder: Path, busybox: Path, links: dict[str, str]) -> None:
    root = folder / "tree"
    for name in ("bin", "dev", "etc", "proc", "run", "sys"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / BUSYBOX)
    for link, target in links.items():
        (root / link).symlink_to(target)
    (root / "etc/image").write_text("of the image\n")
    disk = folder / "disk.raw"
    with disk.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", "-d", root, disk], check=True)
    shutil.rmtree(root)
