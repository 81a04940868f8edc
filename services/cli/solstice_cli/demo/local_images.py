"""Makes images from programs and files of this machine, so that no registry is needed."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

FOLDERS: Final = ("bin", "tmp", "etc", "proc", "sys", "dev", "run", "home/ci", "workspace")
LEFT_OUT: Final = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "config-*")
"""Parts of a Python that no image needs."""
NOTHING: Final[Mapping[str, Path]] = MappingProxyType({})
_LIBRARY: Final = re.compile(r"^\s.*?(/\S+) \(0x", re.MULTILINE)
"""A line of ldd(1) with the place of a library."""


def pack(
    archive: Path, programs: Iterable[str], files: Iterable[Path] = (), added: Mapping[str, Path] = NOTHING
) -> None:
    """Pack programs and files of this machine, with their libraries, for `podman import`.

    The programs are in its /bin; `files`, and what is below them, have the same places as here; `added` are files by
    their places in the image.

    Raises FileNotFoundError when one of them is not here.
    """
    root = archive.with_suffix(".files")
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True)
    binaries = []
    for program in programs:
        found = shutil.which(program)
        if found is None:
            raise FileNotFoundError(f"there is no program {program} on this machine")
        _copy(Path(found).resolve(), root / "bin" / program)
        binaries.append(root / "bin" / program)
    for file in files:
        target = root / file.relative_to("/")
        _copy(file, target)
        binaries += target.rglob("*.so") if file.is_dir() else [target]
    for name, file in added.items():
        _copy(file, root / name)
        binaries.append(root / name)
    for library in _libraries(binaries):
        _copy(library, root / library.relative_to("/"))
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    shutil.rmtree(root)


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        ignored = shutil.ignore_patterns(*LEFT_OUT)
        shutil.copytree(file, target, ignore=ignored, ignore_dangling_symlinks=True)
    elif not target.exists():
        shutil.copy2(file, target)


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    command = ["ldd", *map(str, binaries)]
    # It also fails for a file that is no program.
    linked = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {Path(found) for found in _LIBRARY.findall(linked)}
