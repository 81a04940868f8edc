"""Only plain files of the workspace become an artifact."""

import hashlib
import io
import os
import random
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from solstice_orchestrator.domain.jobs import ArtifactSpec, Reason
from solstice_orchestrator.worker.artifacts import collecting
from solstice_orchestrator.worker.artifacts.collecting import CollectedFiles, collect
from solstice_orchestrator.worker.artifacts.sources import NotCollected, shown
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles

MIB = 1024**2


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "source" / "dist" / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_text("not yours")
    return tmp_path / "source"


class Collected:
    """The result of one collection, and its archive."""

    def __init__(
        self,
        source: Path,
        path: str = "dist/**",
        *,
        most: int = MIB,
        room: int = MIB,
        out: io.BytesIO | None = None,
    ) -> None:
        self.out = out or io.BytesIO()
        spec = ArtifactSpec(name="dist", path=path)
        self.result = collect(WorkspaceFiles(source), spec, self.out, most_bytes=most, room_bytes=room)

    @property
    def names(self) -> list[str]:
        assert isinstance(self.result, CollectedFiles), self.result
        with tarfile.open(fileobj=io.BytesIO(self.out.getvalue())) as archive:
            assert all(member.isreg() for member in archive)
            return archive.getnames()

    @property
    def refusal(self) -> str:
        assert isinstance(self.result, NotCollected), self.result
        assert self.result.reason is Reason.ARTIFACT_REFUSED
        return self.result.detail


def test_the_archive_has_the_files_that_fit_in_order_and_its_digest(workspace: Path) -> None:
    for name in ("dist/b", "dist/deep/c", "dist/a", "other"):
        (workspace / name).write_text(name)
    (workspace / "dist/a").chmod(0o755)
    collected = Collected(workspace)
    assert collected.names == ["dist/a", "dist/b", "dist/deep/c"]
    content = collected.out.getvalue()
    assert collected.result == CollectedFiles(
        digest=hashlib.sha256(content).hexdigest(), size=len(content), files=3
    )
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert [(member.mode, member.mtime, member.uid) for member in archive] == [
            (0o755, 0, 0),
            (0o644, 0, 0),
            (0o644, 0, 0),
        ]
        inner = archive.extractfile("dist/deep/c")
        assert inner is not None
        assert inner.read() == b"dist/deep/c"
    os.utime(workspace / "dist/b", (1, 1))
    assert Collected(workspace).result == collected.result


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("dist", ["dist/a.txt", "dist/deep/b.txt"]),
        ("dist/a.txt", ["dist/a.txt"]),
        ("**/*.txt", ["dist/a.txt", "dist/deep/b.txt"]),
        ("*/*.txt", ["dist/a.txt"]),
        ("dist/*/b.???", ["dist/deep/b.txt"]),
    ],
)
def test_a_pattern_chooses_files(workspace: Path, path: str, names: list[str]) -> None:
    (workspace / "dist/a.txt").touch()
    (workspace / "dist/deep/b.txt").touch()
    (workspace / "link").symlink_to("/etc")
    assert Collected(workspace, path).names == names


@pytest.mark.parametrize("path", ["dist/**", "nothing/**", "nothing", "dist/x/y", "dist/x/*"])
def test_an_artifact_without_a_file_is_refused(workspace: Path, path: str) -> None:
    assert Collected(workspace, path).refusal == f"no file of the workspace fits {path!r}"


def test_every_byte_that_a_name_may_have_is_kept(workspace: Path) -> None:
    names = [bytes([byte]) + b"x" for byte in range(1, 256) if byte != ord("/")]
    names += [b"n" * 255, "später".encode(), b"\xff\xfe" * 100]
    for name in names:
        (workspace / "dist" / os.fsdecode(name)).write_bytes(name)
    names_in_archive = Collected(workspace).names
    assert [os.fsencode(name) for name in names_in_archive] == sorted(b"dist/" + name for name in names)


def _link(inside: Path) -> None:
    (inside / "x").symlink_to("../../secret")


def _link_to_directory(inside: Path) -> None:
    (inside / "x").symlink_to("/etc")


def _fifo(inside: Path) -> None:
    os.mkfifo(inside / "x")


def _socket(inside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        above = os.open(inside, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{above}/x")
        os.close(above)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (_link, "a symbolic link"),
        (_link_to_directory, "a symbolic link"),
        (_fifo, "a named pipe"),
        (_socket, "a socket"),
    ],
)
def test_what_is_no_plain_file_is_refused_by_name(
    workspace: Path, make: Callable[[Path], None], kind: str
) -> None:
    (workspace / "dist/good").touch()
    make(workspace / "dist")
    assert Collected(workspace).refusal == f"dist/x is {kind}, and plain files alone are taken"
    assert Collected(workspace, "dist/x").refusal == f"dist/x is {kind}, and plain files alone are taken"


# CI is root. The other special files, which anyone can make, are tested for everyone.
@pytest.mark.skipif(os.geteuid() != 0, reason="not asked for: only root may make a device")
def test_a_device_is_refused_and_never_opened(workspace: Path) -> None:
    os.mknod(workspace / "dist/x", 0o020666, os.makedev(1, 5))
    assert "is a device" in Collected(workspace).refusal


@pytest.mark.parametrize("path", ["dist/**", "dist", "dist/a"])
def test_a_linked_directory_on_the_way_is_not_followed(workspace: Path, path: str) -> None:
    elsewhere = workspace.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a").write_text("not yours")
    (workspace / "dist/deep").rmdir()
    (workspace / "dist").rmdir()
    (workspace / "dist").symlink_to(elsewhere)
    assert "symbolic link" in Collected(workspace, path).refusal


def test_a_workspace_that_became_a_link_is_not_followed(workspace: Path) -> None:
    workspace.rename(workspace.parent / "moved")
    workspace.symlink_to(workspace.parent / "moved")
    assert "cannot be read" in Collected(workspace).refusal


def test_a_hard_link_is_a_file_with_content(workspace: Path) -> None:
    (workspace / "dist/a").write_text("same")
    (workspace / "dist/b").hardlink_to(workspace / "dist/a")
    assert Collected(workspace).names == ["dist/a", "dist/b"]


def test_a_directory_that_becomes_a_link_while_it_is_walked_leads_nowhere(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "dist/deep/a").write_text("mine")
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "a").write_text("not yours")
    opened = os.open

    def swapping(name: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name == b"deep":
            (workspace / "dist/deep").rename(workspace / "gone")
            (workspace / "dist/deep").symlink_to(outside)
        return opened(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapping)
    assert "dist/deep cannot be read" in Collected(workspace).refusal


def test_a_file_that_becomes_a_link_before_it_is_opened_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "dist/a").write_text("mine")
    opened = os.open

    def swapping(name: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name == b"a":
            (workspace / "dist/a").unlink()
            (workspace / "dist/a").symlink_to("../../secret")
        return opened(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapping)
    assert "is a symbolic link" in Collected(workspace).refusal


@pytest.mark.parametrize(
    ("change", "words"), [(200, "changed while it was read"), (10, "became shorter while it was read")]
)
def test_a_file_that_changes_while_it_is_read_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, change: int, words: str
) -> None:
    file = workspace / "dist/a"
    file.write_bytes(b"x" * 100)
    read = os.read

    def changing(descriptor: int, size: int) -> bytes:
        piece = read(descriptor, min(size, 10))
        os.truncate(file, change)
        return piece

    monkeypatch.setattr(os, "read", changing)
    assert Collected(workspace).refusal == f"dist/a {words}"


def test_a_sparse_file_counts_with_its_length_and_is_not_read(workspace: Path) -> None:
    with (workspace / "dist/a").open("wb") as file:
        file.truncate(2**40)
    collected = Collected(workspace)
    assert "dist/a makes it larger than 1 MiB" in collected.refusal
    assert collected.out.getvalue() == b""


def test_files_together_are_limited(workspace: Path) -> None:
    for number in range(3):
        (workspace / f"dist/{number}").write_bytes(bytes(MIB // 2))
    assert "dist/1 makes it larger" in Collected(workspace).refusal


def test_room_of_the_disk_is_left_to_others(workspace: Path) -> None:
    (workspace / "dist/a").write_bytes(bytes(2048))
    assert Collected(workspace, room=1024).result == NotCollected(
        reason=Reason.ARTIFACT_NOT_STORED,
        detail="the disk of ARTIFACT_DIRECTORY would have less room left than DISK_RESERVE_MIB says",
    )


def test_a_disk_that_is_full_is_not_the_fault_of_the_job(workspace: Path) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    (workspace / "dist/a").touch()
    assert Collected(workspace, out=Full()).result == NotCollected(
        reason=Reason.ARTIFACT_NOT_STORED, detail="writing it failed: No space left on device"
    )


def test_many_files_and_names_are_limited(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        (workspace / f"dist/{number:02}").touch()
    monkeypatch.setattr(collecting, "MAX_FILES", 11)
    assert "more than 11 files" in Collected(workspace).refusal
    monkeypatch.setattr(collecting, "MAX_ENTRIES", 10)
    assert "more than 10 names" in Collected(workspace).refusal


def test_directories_are_not_too_deep(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MAX_DEPTH", 3)
    deepest = workspace / "dist/1/2/3"
    deepest.mkdir(parents=True)
    (deepest / "a").touch()
    assert Collected(workspace).names == ["dist/1/2/3/a"]
    (deepest / "4").mkdir()
    assert "dist/1/2/3/4 is in more than 3 directories" in Collected(workspace).refusal


def test_it_stops_when_the_job_is_to_end(workspace: Path) -> None:
    (workspace / "dist/a").write_text("x")
    result = collect(
        WorkspaceFiles(workspace),
        ArtifactSpec(name="dist", path="dist/**"),
        io.BytesIO(),
        most_bytes=MIB,
        room_bytes=MIB,
        is_ended=lambda: True,
    )
    assert isinstance(result, NotCollected)
    assert result.reason is Reason.CANCEL_REQUESTED


def test_names_are_shown_on_one_line_even_if_they_are_no_text() -> None:
    assert shown(b"a\nb\x1b[31m\xff") == "a\\nb\\x1b[31m\\xff"
    assert len(shown(random.Random(1).randbytes(500))) == 203
