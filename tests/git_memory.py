"""Reads the memory of git's processes, as another process or a core file can."""

from collections.abc import Iterator
from pathlib import Path


def git_memory(folder: Path) -> Iterator[tuple[str, bytes]]:
    """What another process of this user, or a core file, can show of git's processes."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            if f"HOME={folder}".encode() not in environment:
                continue
            command = (process / "cmdline").read_bytes()
            yield f"{process}: environment", environment
            yield f"{process}: arguments of {command!r}", command
            with (process / "mem").open("rb", buffering=0) as memory:
                for line in (process / "maps").read_text().splitlines():
                    start, end = (int(part, 16) for part in line.split(" ")[0].split("-"))
                    if line.split(" ")[1].startswith("rw"):
                        memory.seek(start)
                        yield f"{process}: memory of {command!r}", memory.read(end - start)
        except OSError:
            continue
