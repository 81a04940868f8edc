"""Prepares the project of `./just demo-containers`: its podman, its images, its repository."""

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solstice_cli.demo.local_images import pack
from solstice_cli.demo.local_podman import local_podman, oci_runtime
from solstice_cli.demo.stops import Stops, Unexpected
from solstice_common.cli.local_repository import git_environment

EXAMPLE: Final = Path(__file__).resolve().parents[4] / "docs" / "examples" / "guestbook"
PACKAGES: Final = ("podman", "runc", "uidmap", "containernetworking-plugins")
INSTALL: Final = ("apt-get", "install", "-q", "-y", "--no-install-recommends", *PACKAGES)
PROGRAMS: Final = ("sh", "bash", "env", "cat", "ls", "mkdir", "rm", "sleep")
PYTHON: Final = "localhost/guestbook/python:1"
STORE: Final = "localhost/guestbook/store:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProject:
    """A project whose jobs run in containers."""

    checkout: Path
    settings: Mapping[str, str]
    """Of `solstice up`."""


@asynccontextmanager
async def container_project(stops: Stops, folder: Path) -> AsyncIterator[ContainerProject]:
    """Make the images and a repository of the example; leaving removes the images."""
    async with stops.stop("podman is there", limit_seconds=600):
        await asyncio.to_thread(_find_podman, stops.console.print)
    with local_podman(folder / "podman") as variables:
        checkout = folder / "guestbook"
        async with stops.stop("its images were made from programs of this machine", limit_seconds=300):
            await asyncio.to_thread(_make_images, folder / "image", variables)
            await asyncio.to_thread(_make_checkout, checkout)
        yield ContainerProject(checkout=checkout, settings={**variables, "EXECUTOR": "podman"})


def _find_podman(say: Callable[[str], None]) -> None:
    """Make sure that there is a podman: on Debian, root gets its packages.

    Raises Unexpected, which says what is missing.
    """
    if _has_podman():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unexpected(
            f"podman, or runc, is missing here; on Debian or Ubuntu, root gets it by: apt-get install {' '.join(PACKAGES)}"
        )
    say(f"There is no podman here yet: {' '.join(INSTALL)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # The lists of a fresh machine may be empty; those that are there may suffice.
    subprocess.run(["apt-get", "update", "-q"], env=environment, capture_output=True, check=False)
    _run(INSTALL, environment)
    if not _has_podman():
        raise Unexpected(f"podman, or runc, is still missing after {' '.join(INSTALL)}")


def _has_podman() -> bool:
    return shutil.which("podman") is not None and oci_runtime() is not None


def _make_images(folder: Path, variables: Mapping[str, str]) -> None:
    """Make one image with two names.

    The shell of a job does not care what the image would run.
    """
    files = [Path(sysconfig.get_path("stdlib")), Path("/etc/ld.so.cache")]
    added = {"bin/python3": Path(sys.executable).resolve(), "srv/store.py": EXAMPLE / "store" / "store.py"}
    archive = folder / "image.tar"
    folder.mkdir()
    pack(archive, PROGRAMS, [each for each in files if each.exists()], added)
    changes = (
        'CMD ["python3", "/srv/store.py"]',
        "ENV PATH=/bin",
        # It is not at the place for which it was made.
        f"ENV PYTHONHOME={sys.base_prefix}",
    )
    options = [f"--change={each}" for each in changes]
    _run(["podman", "import", "--quiet", *options, str(archive), STORE], {**os.environ, **variables})
    _run(["podman", "tag", STORE, PYTHON], {**os.environ, **variables})
    shutil.rmtree(folder)


def _make_checkout(folder: Path) -> None:
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(folder), "-c", "user.name=Demo", "-c", "user.email=demo@localhost"]
    _run([*git, "init", "--quiet", "--initial-branch=main"], git_environment())
    _run([*git, "add", "."], git_environment())
    _run([*git, "commit", "--quiet", "-m", "A guestbook"], git_environment())


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    ran = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        last = (ran.stderr.strip() or ran.stdout.strip()).splitlines()[-1:]
        raise Unexpected(f"{' '.join(command)}: {' '.join(last) or f'exit code {ran.returncode}'}"[:1000])
