"""The script that hands files out of a VM, run with tools of this machine."""

import io
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from solstice_orchestrator.domain.jobs import ArtifactSpec
from solstice_orchestrator.worker.artifacts.collecting import CollectedFiles, collect
from solstice_orchestrator.worker.artifacts.device_files import DeviceFiles
from solstice_orchestrator.worker.artifacts.sources import ArtifactSource, NotCollected
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles
from solstice_orchestrator.worker.executors.vms.handing_out import handing_out
from tests.servers.guest_kernel import BUSYBOX
from tests.servers.vm_image import VM_KERNEL, why_no_vm

MIB = 1024**2
TOOLS: Final = ("find", "tar", "dd", "sh", "cat", "rm", "mknod")
NAMES: Final = (
    b"plain",
    b"two words",
    b"it's",
    b"new\nline",
    b"-rf",
    b"*",
    b"[x]",
    b"back\\slash",
    b"\xff\xfe",
    b"n" * 255,
)
PATTERNS: Final = (
    *(
        "**",
        "dist",
        "dist/**",
        "dist/plain",
        "**/*.txt",
        "*/*.txt",
        "dist/d?ep/*",
        "dist/[dx]eep/**",
        "dist/two words",
    ),
    *(
        "dist/it's",
        "dist/*'s",
        "dist/back\\slash",
        "dist/back\\*",
        "dist/[[]x]",
        "dist/[*]",
        "dist/-rf",
        "dist/n*",
        "**/deep",
    ),
    *("nothing/**", "dist/plain/x", "linked/**", "linked", "dist/é?", "dist/sp*"),
)
NOT_COLLECTED: Final = {"**", "**/deep", "nothing/**", "dist/plain/x", "linked/**", "linked"}


@pytest.fixture
def gnu_tools(tmp_path: Path) -> Path:
    """A folder with the programs of a VM, as GNU has them, and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for each in TOOLS:
        (folder / each).symlink_to(shutil.which(each) or "/nowhere")
    return folder


@pytest.fixture(params=["gnu", "busybox"])
def tools(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "gnu":
        folder: Path = request.getfixturevalue("gnu_tools")
        return folder
    folder = tmp_path / "bin"
    folder.mkdir()
    # On Debian as root it is unpacked, so that CI runs this; elsewhere there may be none.
    if missing := why_no_vm():
        pytest.skip(f"not asked for: there is no busybox, since {missing}")
    shutil.copy(VM_KERNEL.folder() / "busybox", folder / Path(BUSYBOX).name)
    for each in TOOLS:
        (folder / each).symlink_to(Path(BUSYBOX).name)
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "dist/deep/deeper").mkdir(parents=True)
    for number, each in enumerate(NAMES):
        (source / "dist" / os.fsdecode(each)).write_bytes(b"x" * 300 * number)
    for name in ("dist/é1", "dist/deep/a.txt", "dist/deep/deeper/b.txt", "dist/c.txt", "d.txt", "dist.txt"):
        (source / name).write_text(name)
    (source / "dist/deep/a.txt").chmod(0o755)
    (source / "dist/hard").hardlink_to(source / "dist/deep/a.txt")
    (source / "linked").symlink_to("dist")
    with (source / "dist/sparse").open("wb") as file:
        file.truncate(100_000)
    return source


def device_of(
    source: Path,
    tools: Path,
    artifacts: Sequence[ArtifactSpec],
    *,
    length: int = 8 * MIB,
    disk: Path | None = None,
) -> DeviceFiles:
    """What the script writes to a device, with a VM's folders in one here."""
    guest = tools.parent / "guest"
    for name in ("block/vdc", "dev", "proc", "run"):
        (guest / name).mkdir(parents=True, exist_ok=True)
    (guest / "block/vdc/serial").write_text("solstice-out")
    device = guest / "dev/vdc"
    device.write_bytes(b"")
    os.truncate(device, length)
    if disk:
        device.unlink()
        device.symlink_to(disk)
    script = handing_out(artifacts)
    places = {"/run/solstice": "run", "/proc/[": "proc/[", "/sys/block/": "block/", "/dev/${": "dev/${"}
    for there, here in places.items():
        assert there in script
        script = script.replace(there, f"{guest}/{here}")
    # What `dd` would cut off a file it leaves on a disk.
    script = script.replace("conv=fsync", "conv=fsync,notrunc")
    (guest / "script").write_text(script)
    subprocess.run([tools / "sh", "-e", guest / "script"], cwd=source, env={"PATH": str(tools)}, check=True)
    if not disk:
        # It has no more room than this.
        os.truncate(device, length)
    return DeviceFiles(device)


def result_of(source: ArtifactSource, path: str, most_bytes: int = MIB) -> CollectedFiles | NotCollected:
    spec = ArtifactSpec(name="x", path=path)
    return collect(source, spec, io.BytesIO(), most_bytes=most_bytes, room_bytes=16 * MIB)


def test_the_same_files_have_the_same_digest_from_a_vm_and_from_a_workspace(
    workspace: Path, tools: Path
) -> None:
    artifacts = [ArtifactSpec(name=f"a{number}", path=path) for number, path in enumerate(PATTERNS)]
    here = {path: result_of(WorkspaceFiles(workspace), path) for path in PATTERNS}
    together = device_of(workspace, tools, artifacts)
    assert {path: result_of(together, path) for path in PATTERNS} == here
    assert {path for path, found in here.items() if isinstance(found, NotCollected)} == NOT_COLLECTED
    for path in ("dist/it's", "**/*.txt", "linked/**", "nothing/**", "dist/deep/a.txt"):
        alone = device_of(workspace, tools, [ArtifactSpec(name="x", path=path)])
        assert result_of(alone, path) == result_of(WorkspaceFiles(workspace), path)


def test_what_is_no_plain_file_is_refused_in_the_same_words(workspace: Path, tools: Path) -> None:
    for name in ("link", "pipe", "socket", "device"):
        (workspace / name).mkdir()
    (workspace / "link/x").symlink_to("/etc/passwd")
    os.mkfifo(workspace / "pipe/x")
    with socket.socket(socket.AF_UNIX) as listening:
        above = os.open(workspace / "socket", os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{above}/x")
        os.close(above)
    names = ["link", "pipe", "socket"]
    if os.geteuid() == 0:
        os.mknod(workspace / "device/x", 0o020666, os.makedev(1, 3))
        names.append("device")
    else:
        # Only root may make a device, as the script does for a socket.
        names.remove("socket")
    here = {name: result_of(WorkspaceFiles(workspace), name) for name in names}
    assert all(isinstance(each, NotCollected) for each in here.values())
    artifacts = [ArtifactSpec(name=name, path=name) for name in names]
    device = device_of(workspace, tools, artifacts)
    assert {name: result_of(device, name) for name in names} == here


def test_a_file_in_the_way_of_two_artifacts_is_handed_out_once(workspace: Path, tools: Path) -> None:
    paths = ("linked/a/**", "linked/b/**", "d.txt/a", "d.txt/b")
    device = device_of(workspace, tools, [ArtifactSpec(name=path, path=path) for path in paths])
    for path in paths:
        assert result_of(device, path) == result_of(WorkspaceFiles(workspace), path)


def test_many_files_are_handed_out_in_several_archives(workspace: Path, tools: Path) -> None:
    many = workspace / "many"
    many.mkdir()
    for number in range(3000):
        (many / f"{number:05}{'x' * 200}").touch()
    device = device_of(workspace, tools, [ArtifactSpec(name="many", path="many")])
    found = result_of(device, "many", 8 * MIB)
    assert isinstance(found, CollectedFiles)
    assert found == result_of(WorkspaceFiles(workspace), "many", 8 * MIB)


def test_what_has_no_room_on_the_device_is_not_whole_unless_it_is_too_large_for_an_artifact(
    workspace: Path, tools: Path
) -> None:
    (workspace / "dist/big").write_bytes(bytes(2 * MIB))
    device = device_of(workspace, tools, [ArtifactSpec(name="dist", path="dist/big")], length=MIB + MIB // 2)
    assert result_of(device, "dist/big") == result_of(WorkspaceFiles(workspace), "dist/big")
    more = result_of(device, "dist/big", 4 * MIB)
    assert isinstance(more, NotCollected)
    assert "has not handed out all files" in more.detail


@pytest.mark.parametrize("missing", ["tar", "find", "dd"])
def test_a_vm_without_a_tool_hands_out_nothing_by_half(
    workspace: Path, gnu_tools: Path, missing: str
) -> None:
    # A busybox runs its own tools, wherever it is.
    (gnu_tools / missing).unlink()
    device = device_of(workspace, gnu_tools, [ArtifactSpec(name="dist", path="dist/c.txt")])
    result = result_of(device, "dist/c.txt")
    assert isinstance(result, NotCollected)
    assert "has not handed out all files" in result.detail


def test_the_log_of_the_job_says_why_a_disk_took_nothing(
    workspace: Path, tools: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    device_of(workspace, tools, [ArtifactSpec(name="dist", path="dist/c.txt")], disk=Path("/dev/full"))
    assert "No space left on device" in capfd.readouterr().err
