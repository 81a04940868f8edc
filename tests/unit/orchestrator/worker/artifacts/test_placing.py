"""The files of an archive get into the directory, and nothing gets anywhere else."""

import hashlib
import io
import os
import random
import stat
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_orchestrator.domain.jobs import ArtifactSpec
from solstice_orchestrator.worker.artifacts.collecting import CollectedFiles, collect
from solstice_orchestrator.worker.artifacts.placing import (
    NotPlaced,
    Obstacle,
    PlacedFiles,
    PlacingLimits,
    place_files,
)
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles

MIB = 1024**2
LIMITS = PlacingLimits(most_bytes=MIB, most_files=100)
NAMES = st.binary(min_size=1, max_size=40).filter(lambda name: not {*b"/\0"} & {*name} and name.strip(b"."))


class Archive:
    """An archive with what a test puts into it."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.out = io.BytesIO()
        self._tar = tarfile.open(fileobj=self.out, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115  closed by `content`
        for name, content in (files or {}).items():
            self.add(name, content)

    def add(self, name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
        member = tarfile.TarInfo(name)
        member.size, member.type, member.linkname = len(content), kind, target
        self._tar.addfile(member, io.BytesIO(content))

    @property
    def content(self) -> bytes:
        self._tar.close()
        return self.out.getvalue()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "above/workspace"
    workspace.mkdir(parents=True)
    (workspace.parent / "other").mkdir()
    (workspace.parent / "other/file").write_text("not yours")
    return workspace


def place(
    archive: Archive | bytes, directory: Path, into: str = "", limits: PlacingLimits = LIMITS
) -> PlacedFiles | NotPlaced:
    content = archive if isinstance(archive, bytes) else archive.content
    return place_files(io.BytesIO(content), directory, into=into, limits=limits)


def tree(directory: Path) -> dict[bytes, bytes]:
    """Return the content of each plain file, and nothing for a link or directory."""
    return {
        os.fsencode(path.relative_to(directory)): path.read_bytes()
        if stat.S_ISREG(path.lstat().st_mode)
        else b""
        for path in directory.rglob("*")
    }


def test_what_was_collected_is_placed_with_contents_and_modes(workspace: Path, tmp_path: Path) -> None:
    deep = "d" * 200
    (tmp_path / "source/dist" / deep).mkdir(parents=True)
    for name, content in (("a", b"1"), ("b", b""), (f"{deep}/\udcff", bytes(700))):
        (tmp_path / "source/dist" / name).write_bytes(content)
    (tmp_path / "source/dist/a").chmod(0o700)
    out = io.BytesIO()
    collected = collect(
        WorkspaceFiles(tmp_path / "source"),
        ArtifactSpec(name="dist", path="dist/**"),
        out,
        most_bytes=MIB,
        room_bytes=MIB,
    )
    assert isinstance(collected, CollectedFiles)
    out.seek(0)
    placed = place_files(out, workspace, into="from/build", limits=LIMITS, digest=collected.digest)
    assert placed == PlacedFiles(files=3, content_bytes=701, digest=collected.digest)
    assert tree(workspace / "from/build") == tree(tmp_path / "source")
    modes = [(workspace / "from/build/dist" / name).stat().st_mode & 0o777 for name in ("a", "b")]
    assert modes == [0o755, 0o644]


@settings(max_examples=25)
@given(files=st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map(b"/".join), st.binary(max_size=600)))
def test_any_names_become_the_same_tree(files: dict[bytes, bytes]) -> None:
    whole = {
        name: content for name, content in files.items() if not any(f.startswith(name + b"/") for f in files)
    }
    archive = Archive({os.fsdecode(name): content for name, content in whole.items()})
    with TemporaryDirectory() as directory:
        assert isinstance(place(archive, Path(directory)), PlacedFiles)
        placed = {name: each for name, each in tree(Path(directory)).items() if name in whole}
        assert placed == whole


@settings(max_examples=60)
@given(
    position=st.integers(0, 4095),
    byte=st.integers(0, 255),
    cut=st.none() | st.integers(0, 4096),
)
def test_no_change_of_an_archive_makes_it_reach_out(position: int, byte: int, cut: int | None) -> None:
    archive = Archive({"a/b": b"content", "a/" + "long" * 40: b"x" * 513, "c": b""})
    content = bytearray(archive.content)
    content[position] = byte
    with TemporaryDirectory() as directory:
        (Path(directory) / "inside").mkdir()
        result = place(bytes(content[:cut]), Path(directory) / "inside")
        assert isinstance(result, PlacedFiles | NotPlaced)
        assert [each.name for each in Path(directory).iterdir()] == ["inside"]


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../escaped", tarfile.REGTYPE, ""),
        ("a/../../escaped", tarfile.REGTYPE, ""),
        ("..", tarfile.DIRTYPE, ""),
        ("/tmp/escaped", tarfile.REGTYPE, ""),
        ("./a", tarfile.REGTYPE, ""),
        ("a//b", tarfile.REGTYPE, ""),
        ("", tarfile.REGTYPE, ""),
        ("n" * 256, tarfile.REGTYPE, ""),
        ("d/" * 64 + "a", tarfile.REGTYPE, ""),
        ("a", tarfile.SYMTYPE, "../other/file"),
        ("a", tarfile.LNKTYPE, "../other/file"),
        ("a", tarfile.CHRTYPE, ""),
        ("a", tarfile.BLKTYPE, ""),
        ("a", tarfile.FIFOTYPE, ""),
        ("a", tarfile.GNUTYPE_SPARSE, ""),
        ("a", tarfile.CONTTYPE, ""),
        ("a", tarfile.XHDTYPE, ""),
        ("a", tarfile.XGLTYPE, ""),
    ],
)
def test_an_archive_with_anything_else_is_refused(
    workspace: Path, name: str, kind: bytes, target: str
) -> None:
    archive = Archive({"first": b"1"})
    archive.add(name, kind=kind, target=target)
    before = tree(workspace.parent)
    result = place(archive, workspace)
    assert isinstance(result, NotPlaced)
    assert result.obstacle is Obstacle.ARCHIVE
    assert tree(workspace.parent) == {**before, b"workspace/first": b"1"}


def test_a_name_that_comes_twice_is_refused(workspace: Path) -> None:
    archive = Archive({"a": b"1"})
    archive.add("a", b"2")
    assert place(archive, workspace) == NotPlaced(obstacle=Obstacle.ARCHIVE, detail="a is in it twice")


def test_directories_of_an_archive_are_made_once(workspace: Path) -> None:
    archive = Archive()
    archive.add("empty/", kind=tarfile.DIRTYPE)
    archive.add("full", kind=tarfile.DIRTYPE)
    archive.add("full/a", b"1")
    assert isinstance(place(archive, workspace), PlacedFiles)
    assert tree(workspace) == {b"empty": b"", b"full": b"", b"full/a": b"1"}


def linked(workspace: Path) -> None:
    (workspace / "dist").symlink_to("../other")


def linked_above(workspace: Path) -> None:
    (workspace / "from").symlink_to("../other")


def filed(workspace: Path) -> None:
    (workspace / "dist").write_text("a file")


def piped(workspace: Path) -> None:
    os.mkfifo(workspace / "dist")


def occupied(workspace: Path) -> None:
    (workspace / "from/dist/a").mkdir(parents=True)


@pytest.mark.parametrize(
    ("prepare", "into", "detail"),
    [
        (linked, "", "dist is no directory, which belongs there"),
        (linked_above, "from", "from is no directory, which belongs there"),
        (filed, "", "dist is no directory, which belongs there"),
        (piped, "", "dist is no directory, which belongs there"),
        (occupied, "from", "dist/a is a directory, where a file belongs"),
    ],
)
def test_what_is_in_the_way_is_named_and_not_followed(
    workspace: Path, prepare: Callable[[Path], None], into: str, detail: str
) -> None:
    prepare(workspace)
    before = tree(workspace.parent)
    result = place(Archive({"dist/a": b"1"}), workspace, into)
    assert result == NotPlaced(obstacle=Obstacle.IN_THE_WAY, detail=detail)
    assert tree(workspace.parent) == before


def test_a_file_or_link_in_the_place_of_a_file_is_replaced(workspace: Path) -> None:
    (workspace / "a").symlink_to("../other/file")
    (workspace / "b").write_text("longer than before")
    os.mkfifo(workspace / "c")
    (workspace / "d").hardlink_to(workspace.parent / "other/file")
    assert isinstance(place(Archive(dict.fromkeys("abcd", b"new")), workspace), PlacedFiles)
    assert tree(workspace) == {name.encode(): b"new" for name in "abcd"}
    assert (workspace.parent / "other/file").read_text() == "not yours"


def test_limits_end_it_before_they_are_exceeded(workspace: Path) -> None:
    few = PlacingLimits(most_bytes=MIB, most_files=2)
    result = place(Archive({"a": b"", "b": b"", "c": b""}), workspace, limits=few)
    assert isinstance(result, NotPlaced)
    assert result.obstacle is Obstacle.TOO_LARGE
    assert sorted(tree(workspace)) == [b"a", b"b"]
    # The directories that it needs count, too.
    result = place(Archive({"x/y/z": b"", "w": b""}), workspace, limits=few)
    assert isinstance(result, NotPlaced)
    small = PlacingLimits(most_bytes=10, most_files=100)
    result = place(Archive({"d": bytes(6), "e": bytes(5)}), workspace, limits=small)
    assert result == NotPlaced(
        obstacle=Obstacle.TOO_LARGE, detail="its files have more than 10 bytes together"
    )
    assert not (workspace / "e").exists()


def test_an_endless_stream_behind_the_end_is_not_read_forever(workspace: Path) -> None:
    class Endless(io.BytesIO):
        def read(self, most: int | None = -1, /) -> bytes:
            return super().read(most) or bytes(most or 0)

    result = place_files(Endless(Archive({"a": b"1"}).content), workspace, limits=LIMITS)
    assert isinstance(result, NotPlaced)
    assert result.obstacle is Obstacle.TOO_LARGE


def test_a_stream_that_gives_little_at_a_time_is_read_whole(workspace: Path) -> None:
    class Slow(io.BytesIO):
        def read(self, most: int | None = -1, /) -> bytes:
            return super().read(min(most or 0, 7))

    content = random.Random(7).randbytes(2000)
    assert isinstance(
        place_files(Slow(Archive({"a": content}).content), workspace, limits=LIMITS), PlacedFiles
    )
    assert (workspace / "a").read_bytes() == content


@pytest.mark.parametrize("change", ["byte", "cut", "more"])
def test_another_archive_than_the_digest_names_is_refused(workspace: Path, change: str) -> None:
    content = bytearray(Archive({"a": bytes(100)}).content)
    digest = hashlib.sha256(content).hexdigest()
    if change == "byte":
        content[512] = 1
    elif change == "cut":
        del content[-512:]
    else:
        content += bytes(512)
    result = place_files(io.BytesIO(content), workspace, limits=LIMITS, digest=digest)
    assert isinstance(result, NotPlaced)
    assert result.obstacle is Obstacle.ARCHIVE
    assert "its SHA-256 is" in result.detail


def test_it_stops_in_the_midst_of_a_file_when_asked_to(workspace: Path) -> None:
    answers = iter([False] * 4 + [True] * 100)
    result = place_files(
        io.BytesIO(Archive({"a": bytes(4 * MIB)}).content),
        workspace,
        limits=PlacingLimits(most_bytes=8 * MIB, most_files=1),
        is_ended=lambda: next(answers),
    )
    assert isinstance(result, NotPlaced)
    assert result.obstacle is Obstacle.ENDED
    assert 0 < (workspace / "a").stat().st_size < 4 * MIB


def test_a_subdirectory_that_leads_elsewhere_is_a_mistake_of_the_caller(workspace: Path) -> None:
    for into in ("..", "a/../..", "/tmp", "a//b"):
        with pytest.raises(ValueError, match="no path below"):
            place(Archive({"a": b""}), workspace, into)


def test_no_descriptor_is_left_open(workspace: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    place(Archive({"a/b/c": b"", "a/d": b""}), workspace, "x/y")
    (workspace / "link").symlink_to("/")
    place(Archive({"a/b/c": b"", "link/b": b""}), workspace)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
