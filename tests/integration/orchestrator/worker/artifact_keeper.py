"""Forks processes that keep artifacts again and again, until each is killed.

For each line that it reads it forks one and writes its id; it does not go on before that one has ended.
"""

import asyncio
import os
import sys
import tarfile
from pathlib import Path

from solstice_orchestrator.domain.jobs import ArtifactSpec
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.device_files import WHOLE, DeviceFiles
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles
from solstice_orchestrator.worker.executors.protocol import stored_nowhere


async def keep(folder: Path) -> None:
    """Keep artifacts; each has another content, so each is written."""
    keeping = ArtifactKeeping(directory=ArtifactArchives(folder / "artifacts"))
    spec = ArtifactSpec(name="dist", path="dist/**")
    while True:
        for source in (WorkspaceFiles(folder), DeviceFiles(folder / "out")):
            await asyncio.to_thread(_write_files, folder)
            await keeping.keep(source, spec, stored_nowhere, asyncio.Event())


def _write_files(folder: Path) -> None:
    """Write a workspace, and the device of a VM with the same files."""
    (folder / "dist/number").write_bytes(os.urandom(16))
    with tarfile.open(folder / "out", "w", format=tarfile.GNU_FORMAT) as device:
        for path in sorted((folder / "dist").iterdir()):
            device.add(path, f"./dist/{path.name}")
        device.addfile(tarfile.TarInfo(WHOLE.decode()))


def main(folder: Path) -> None:
    """Fork one process after the other."""
    ArtifactArchives(folder / "artifacts").prepare()
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(keep(folder))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
