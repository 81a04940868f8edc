"""Measures what jobs hand on: caches of 1 GiB beside `cp -a` and `tar | zstd`.

Each round copies the same tree by turns. The tree is half of bytes that do not compress, in files of many sizes; it and the
store are on the disk of the bench, and the files are in the page cache.
"""

import hashlib
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from solstice_orchestrator.worker.caches import packing
from solstice_orchestrator.worker.caches.packing import CacheRoots, pack
from solstice_orchestrator.worker.caches.unpacking import unpack

MIB: Final = 1024**2
SIZES: Final = (2_000, 20_000, 200_000, 2_000_000, 20_000_000)
"""Bytes of files; of each size there are as many bytes, but few of the smallest."""
LEVELS: Final = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The seconds of each round, of a clock and of processors."""

    seconds: Sequence[float]
    processor_seconds: Sequence[float]

    @property
    def summary(self) -> str:
        """The medians, for people."""
        return f"{statistics.median(self.seconds):.1f} s, {statistics.median(self.processor_seconds):.1f} s of processors"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOn:
    """Copies of a tree by each way."""

    files: int
    mebibytes: float
    archive_mebibytes: dict[int, float]
    """By the level of zstd."""
    turns: dict[str, Turn]

    @property
    def summary(self) -> str:
        """The figures, for people."""
        sizes = ", ".join(
            f"{size:.0f} MiB at level {level}" for level, size in self.archive_mebibytes.items()
        )
        head = f"caches of {self.files:,} files, {self.mebibytes:.0f} MiB; compressed {sizes}"
        return "\n".join([head, *(f"  {name}: {turn.summary}" for name, turn in self.turns.items())])


def measure(*, mebibytes: int, rounds: int) -> HandedOn:
    """Save and restore a tree of this size."""
    with tempfile.TemporaryDirectory(prefix="solstice-bench-") as directory:
        folder = Path(directory)
        files = _make_tree(folder / "work/tree", mebibytes)
        sizes = dict[int, float]()
        found = dict[str, list[tuple[float, float]]]()
        for _ in range(rounds):
            for name, turn in _turns(folder, sizes).items():
                for each in ("copy", "home", "aside"):
                    shutil.rmtree(folder / each, ignore_errors=True)
                for each in ("copy", "home"):
                    (folder / each).mkdir()
                os.sync()
                found.setdefault(name, []).append(_timed(turn))
        content = sum(each.stat().st_size for each in (folder / "work").rglob("*") if each.is_file())
    return HandedOn(
        files=files,
        mebibytes=content / MIB,
        archive_mebibytes=sizes,
        turns={
            name: Turn(seconds=[each[0] for each in all_], processor_seconds=[each[1] for each in all_])
            for name, all_ in found.items()
        },
    )


def _turns(folder: Path, sizes: dict[int, float]) -> dict[str, Callable[[], object]]:
    archive, tar = folder / "archive", folder / "tar.zst"
    limit = 16 * 1024 * MIB

    def save(level: int) -> None:
        packing.LEVEL = level  # type: ignore[misc]  # no setting of operators, and measured here alone
        with archive.open("wb") as out:
            packed = pack(
                CacheRoots(workspace=folder / "work", home=folder / "home"), ("tree",), out, most_bytes=limit
            )
            os.fsync(out.fileno())
        sizes[level] = packed.size / MIB

    def restore() -> None:
        with archive.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        with archive.open("rb") as content:
            roots = CacheRoots(workspace=folder / "copy", home=folder / "home")
            unpack(content, digest, roots, ("tree",), folder / "aside", most_bytes=limit)

    turns: dict[str, Callable[[], object]] = {
        "cp -a": lambda: _run("cp -a work/tree copy/tree", folder),
        "tar | zstd -1 -T0": lambda: _run(f"tar -c work/tree | zstd -1 -T0 -q -f -o {tar}", folder),
        "zstd -d | tar": lambda: _run(f"zstd -d -q -c {tar} | tar -x -C copy", folder),
    }
    if shutil.which("zstd") is None:
        del turns["tar | zstd -1 -T0"], turns["zstd -d | tar"]
    for level in reversed(LEVELS):
        turns[f"save at level {level}"] = partial(save, level)
    turns["restore"] = restore
    return turns


def _run(command: str, folder: Path) -> None:
    subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=folder, check=True)


def _timed(turn: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the clock, and of processors, children counted."""
    begun, before = time.monotonic(), os.times()
    turn()
    after = os.times()
    return time.monotonic() - begun, sum(after[:4]) - sum(before[:4])


def _make_tree(folder: Path, mebibytes: int) -> int:
    """Write the tree, and return how many files it has."""
    rng, count = random.Random(7), 0
    words = rng.randbytes(4096)
    for size in SIZES:
        each = mebibytes * MIB // (len(SIZES) - 1) if size > min(SIZES) else mebibytes * 10_000
        for number in range(max(1, each // size)):
            path = folder / f"{size}/{number // 100}/{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            half = size // 2
            path.write_bytes(rng.randbytes(half) + (words * (half // len(words) + 1))[: size - half])
            count += 1
    return count
