"""Gives podman a store of its own in a folder."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

RUNTIMES: Final = ("runc", "crun")
"""In this order: crun refuses machines with both versions of control groups."""


def oci_runtime() -> str | None:
    """Return the program of this machine that makes containers for podman."""
    return next((name for name in RUNTIMES if shutil.which(name)), None)


def configure_podman(folder: Path, driver: str | None = None, runtime: str | None = None) -> dict[str, str]:
    """Return the variables of a podman with a store of its own in a folder.

    Without `driver`, it is the one that this folder's file system allows; without `runtime`, that of this machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    driver = driver or storage_driver(folder)
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    # Stores that share their locks wait for each other's containers.
    (folder / "containers.conf").write_text(
        f'[engine]\nruntime = "{runtime or oci_runtime() or RUNTIMES[0]}"\nevents_logger = "none"\nlock_type = "file"\n'
        f'tmp_dir = "{folder}/engine"\n'
    )
    return {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
    }


def storage_driver(folder: Path) -> str:
    """Return the storage driver for a folder.

    An overlay does not lie on another one, as in a container.
    """
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, check=True).stdout
    return "vfs" if b"overlay" in kind else "overlay"


@contextmanager
def local_podman(folder: Path) -> Iterator[dict[str, str]]:
    """Return the variables of a podman whose store is removed at the end."""
    try:
        yield configure_podman(folder)
    finally:
        remove_store(folder)


def remove_store(folder: Path) -> None:
    """Remove the images of a store, which may be mounted."""
    subprocess.run(["umount", "--lazy", f"{folder}/graph/overlay"], check=False, capture_output=True)
    shutil.rmtree(folder / "graph", ignore_errors=True)
