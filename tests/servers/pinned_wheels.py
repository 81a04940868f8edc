"""Installs pinned wheels into folders of the cache, beside this environment."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.servers.apt import cache_directory, locked

ROOT: Final = Path(__file__).parents[2]


def pinned_wheels(name: str, requirements: Path, otherwise: str = "") -> Path:
    """Return the folder of that name in the cache, with these packages.

    It is made when it is missing; RuntimeError says why it cannot be.
    """
    folder = cache_directory() / name
    with locked(name):
        if not folder.exists():
            _install(requirements, folder, otherwise)
    return folder


def _install(requirements: Path, folder: Path, otherwise: str) -> None:
    building = folder.with_name(f"{folder.name}.building")
    failures = []
    for installer in installers():
        shutil.rmtree(building, ignore_errors=True)
        options = (
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--target",
            str(building),
            "-r",
            str(requirements),
        )
        ran = subprocess.run(
            [*installer, "install", *options],
            env={"UV_SYSTEM_CERTS": "1", **os.environ},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode == 0:
            building.rename(folder)
            return
        failures.append(ran.stderr)
    raise RuntimeError(f"{folder.name} cannot be installed{otherwise}:\n" + "\n".join(failures))


def installers() -> Sequence[Sequence[str]]:
    """Ways to install a wheel, as `./just install` has them."""
    uv = ROOT / ".tools" / "bin" / "uv"
    python = ROOT / ".tools" / "python"
    found = [[str(uv), "pip"]] if uv.exists() else []
    with_pip = python.read_text().strip() if python.exists() else sys.executable
    return [*found, [with_pip, "-m", "pip"]]
