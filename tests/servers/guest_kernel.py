"""Debian's kernels for guests, unpacked and not installed, with modules and a busybox."""

import lzma
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.servers.apt import apt_can_install, apt_install, cache_directory, locked, run

KERNEL: Final = "vmlinuz"
BUSYBOX: Final = "bin/busybox"
QEMU: Final = "qemu-system-x86_64"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestKernel:
    """One kernel, in a folder of the cache."""

    name: str
    package: str
    """Depends on the one that has the kernel itself."""
    modules: tuple[str, ...]

    def why_not(self) -> str | None:
        """Why it is not to be had here; None when it is."""
        if platform.machine() != "x86_64":
            return "its kernel is one for x86_64"
        if not self._folder.exists() and not (apt_can_install() and self._kernel_package()):
            return f"there is no package {self.package}, as Debian has it"
        if shutil.which(QEMU) is None and not apt_can_install():
            return f"it needs {QEMU}"
        return None

    def folder(self) -> Path:
        """The folder with the kernel, its modules in their order, and a busybox."""
        folder = self._folder
        with locked(folder.name):
            if shutil.which(QEMU) is None:
                apt_install("qemu-system-x86")
            if not folder.exists():
                building = folder.with_name(f"{folder.name}.building")
                shutil.rmtree(building, ignore_errors=True)
                self._build(building)
                building.rename(folder)
        return folder

    @property
    def _folder(self) -> Path:
        return cache_directory() / self.name

    def _kernel_package(self) -> str | None:
        command = ["apt-cache", "depends", "--important", self.package]
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.search(r"Depends: (linux-image-\S+)", listed)
        return found[1] if found else None

    def _build(self, folder: Path) -> None:
        packages = folder / "packages"
        packages.mkdir(parents=True)
        run("apt-get", "update", "-q", check=False)
        package = self._kernel_package()
        if package is None:
            raise RuntimeError(f"apt knows no kernel for {self.package}")
        # Unpacked, not installed: this machine starts with its own kernel.
        fetch = 'cd "$1"; shift; apt-get -o APT::Sandbox::User=root download "$@"; '
        unpack = 'for each in *.deb; do dpkg-deb --extract "$each" .; done'
        run("sh", "-ec", fetch + unpack, "sh", str(packages), package, "busybox-static")
        (kernel,) = packages.glob("boot/vmlinuz-*")
        kernel.rename(folder / KERNEL)
        (packages / BUSYBOX).rename(folder / "busybox")
        for number, (name, module) in enumerate(self._in_order(packages)):
            (folder / f"{number:03}-{name}.ko").write_bytes(module)
        shutil.rmtree(packages)

    def _in_order(self, root: Path) -> Iterator[tuple[str, bytes]]:
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

        for module in self.modules:
            yield from with_needed(module)
