"""What a VM wrote to its device is an artifact or its job's failure."""

import io
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_orchestrator.domain.jobs import ArtifactSpec, Reason
from solstice_orchestrator.worker.artifacts import collecting, device_files
from solstice_orchestrator.worker.artifacts.collecting import CollectedFiles, collect
from solstice_orchestrator.worker.artifacts.device_files import DeviceFiles
from solstice_orchestrator.worker.artifacts.sources import NotCollected
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles

MIB = 1024**2
ROOM = 4 * MIB
NOT_WHOLE = "its VM has not handed out all files that may fit"
Member = tuple[str, bytes]


def member(name: str, content: bytes = b"", **fields: object) -> bytes:
    """An entry as tar writes it; `fields` are those of its header."""
    header = tarfile.TarInfo(name)
    header.size = len(content)
    for field, value in fields.items():
        setattr(header, field, value)
    return header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + content + bytes(-len(content) % 512)


END = bytes(1024)
MARK = member("whole") + END
ORDINARY = member("./dist/b", b"two") + member("./dist/a", b"one", mode=0o755) + END + MARK


def changed(block: bytes, place: int, content: bytes) -> bytes:
    """A header with other bytes at a place, and the checksum that belongs to it."""
    head = bytearray(block)
    head[place : place + len(content)] = content
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head[:512])
    return bytes(head)


def collected(
    folder: Path, content: bytes, path: str = "dist/**", length: int = ROOM, most: int = MIB
) -> tuple[CollectedFiles | NotCollected, bytes]:
    """What becomes of a device with this content, and its archive."""
    device = folder / "out"
    device.write_bytes(content)
    os.truncate(device, max(length, len(content)))
    out = io.BytesIO()
    spec = ArtifactSpec(name="dist", path=path)
    return collect(DeviceFiles(device), spec, out, most_bytes=most, room_bytes=ROOM), out.getvalue()


def refusal(folder: Path, content: bytes, path: str = "dist/**", length: int = ROOM) -> str:
    result, _ = collected(folder, content, path, length)
    assert isinstance(result, NotCollected), result
    assert result.reason is Reason.ARTIFACT_REFUSED
    return result.detail


def test_files_of_a_device_make_the_archive_of_the_same_files_in_a_workspace(tmp_path: Path) -> None:
    (tmp_path / "source/dist").mkdir(parents=True)
    (tmp_path / "source/dist/b").write_text("two")
    (tmp_path / "source/dist/a").write_text("one")
    (tmp_path / "source/dist/a").chmod(0o700)
    out = io.BytesIO()
    spec = ArtifactSpec(name="dist", path="dist/**")
    here = collect(WorkspaceFiles(tmp_path / "source"), spec, out, most_bytes=MIB, room_bytes=MIB)
    assert isinstance(here, CollectedFiles)
    assert collected(tmp_path, ORDINARY) == (here, out.getvalue())


def test_another_name_of_a_file_has_its_content(tmp_path: Path) -> None:
    linked = member("./dist/b", type=tarfile.LNKTYPE, linkname="./dist/a")
    result, archive = collected(tmp_path, member("./dist/a", b"one") + linked + END + MARK)
    assert isinstance(result, CollectedFiles)
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        contents = [opened.extractfile(each) for each in opened]
    assert [each.read() if each else None for each in contents] == [b"one", b"one"]


def test_long_names_and_targets_are_read(tmp_path: Path) -> None:
    name = "./dist/" + "n" * 200
    linked = member(name + "2", type=tarfile.LNKTYPE, linkname=name)
    result, _ = collected(tmp_path, member(name, b"one") + linked + END + MARK)
    assert isinstance(result, CollectedFiles)
    assert result.files == 2


LONG = member("./" + "x" * 300)[:512]
ATTACKS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", NOT_WHOLE),
    "no mark": (member("./dist/a", b"one") + END, NOT_WHOLE),
    "no archive": (b"\xff" * 4096, "no archive as our agent writes it: it has no magic word of tar (byte 0)"),
    "wrong checksum": (
        member("./dist/a").replace(b"dist/a", b"dist/b") + MARK,
        "its checksum is wrong (byte 0)",
    ),
    "symbolic link": (
        member("./dist/x", type=tarfile.SYMTYPE, linkname="/etc/passwd") + MARK,
        "symbolic link",
    ),
    "symbolic link above": (
        member("./dist", type=tarfile.SYMTYPE, linkname="/etc") + MARK,
        "dist is a symbolic link",
    ),
    "device": (member("./dist/x", type=tarfile.CHRTYPE, devmajor=1, devminor=5) + MARK, "is a device"),
    "disk": (member("./dist/x", type=tarfile.BLKTYPE) + MARK, "is a device"),
    "named pipe": (member("./dist/x", type=tarfile.FIFOTYPE) + MARK, "is a named pipe"),
    "socket": (member("./dist/x", type=tarfile.CHRTYPE) + MARK, "is a socket"),
    "out of the workspace": (member("./dist/../../x", b"x") + MARK, "is no path in the workspace of the VM"),
    "absolute": (member("/etc/passwd", b"x") + MARK, "/etc/passwd is no path in the workspace"),
    "without ./": (member("dist/x", b"x") + MARK, "dist/x is no path"),
    "empty name": (member("", b"x") + MARK, "is no path"),
    "the workspace": (member("./", b"x") + MARK, "is no path"),
    "empty part": (member("./dist//x", b"x") + MARK, "is no path"),
    "long part": (member("./dist/" + "x" * 256, b"x") + MARK, "is no path"),
    "longer than paths": (member("./dist" + "/x" * 2049, b"x") + MARK, "longer than paths are"),
    "twice": (
        member("./dist/a", b"1") + member("./dist/a", b"2") + MARK,
        "dist/a is on the device of the VM twice",
    ),
    "file and folder": (
        member("./dist", b"1") + member("./dist/a", b"2") + MARK,
        "dist/a is below what is no",
    ),
    "folder and file": (member("./dist/a", b"1") + member("./dist", b"2") + MARK, "dist is on the device of"),
    "a folder": (member("./dist", type=tarfile.DIRTYPE) + MARK, "dist/ is no path"),
    "pax": (member("./x", b"30 size=1\n", type=tarfile.XHDTYPE) + MARK, "an entry of the type b'x'"),
    "pax for all": (member("./x", b"30 size=1\n", type=tarfile.XGLTYPE) + MARK, "an entry of the type b'g'"),
    "sparse": (member("./dist/x", type=tarfile.GNUTYPE_SPARSE) + MARK, "an entry of the type b'S'"),
    "link to nothing": (
        member("./dist/x", type=tarfile.LNKTYPE, linkname="./dist/y") + MARK,
        "dist/x is a link to nothing",
    ),
    "link to itself": (
        member("./dist/x", type=tarfile.LNKTYPE, linkname="./dist/x") + MARK,
        "dist/x is a link to nothing",
    ),
    "link to a folder": (
        member("./dist/a/b") + member("./dist/x", type=tarfile.LNKTYPE, linkname="./dist/a") + MARK,
        "dist/x is a link to nothing",
    ),
    "link out of the workspace": (
        member("./dist/x", type=tarfile.LNKTYPE, linkname="/etc/passwd") + MARK,
        "/etc/passwd is no path",
    ),
    "link with content": (
        member("./dist/a", b"1") + member("./dist/x", b"2", type=tarfile.LNKTYPE, linkname="./dist/a") + MARK,
        "dist/x is a link to nothing",
    ),
    "pipe with content": (
        member("./dist/x", b"1", type=tarfile.FIFOTYPE) + MARK,
        "with a size that is no file",
    ),
    "two long names": (LONG + bytes(512) + LONG + bytes(512) + MARK, "one long name too many"),
    "negative size": (changed(member("./dist/a"), 124, b"\xff" * 12) + MARK, "where a number belongs"),
    "size with a sign": (changed(member("./dist/a"), 124, b"-0000000001\0") + MARK, "where a number belongs"),
    "size in words": (changed(member("./dist/a"), 124, b"0x10_000\0\0\0\0") + MARK, "where a number belongs"),
    "no size": (changed(member("./dist/a"), 124, bytes(12)) + MARK, "where a number belongs"),
    "endless": (
        changed(member("./dist/a"), 124, b"\x80" + b"\xff" * 11) + MARK,
        "makes it larger than 1 MiB",
    ),
    "endless pipe": (
        changed(member("./dist/a", type=tarfile.FIFOTYPE), 124, b"\x80" + b"\xff" * 11),
        "with a size that is no file",
    ),
    "endless, of no interest": (changed(member("./a"), 124, b"\x80" + b"\xff" * 11) + MARK, NOT_WHOLE),
    "larger than the device": (
        changed(member("./dist/a"), 124, b"%011o\0" % (2 * ROOM)),
        "larger than 1 MiB",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_no_agent_of_ours_writes_is_the_jobs_failure_by_name(tmp_path: Path, attack: str) -> None:
    content, words = ATTACKS[attack]
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize("cut", [100, 512, 515, 1024, 1536, 2000])
def test_a_device_that_ends_too_early_is_not_whole(tmp_path: Path, cut: int) -> None:
    assert NOT_WHOLE in refusal(tmp_path, ORDINARY[:cut], length=cut)
    assert NOT_WHOLE in refusal(tmp_path, ORDINARY[:cut], "nothing", length=cut)


def test_a_file_that_has_no_room_on_the_device_is_not_read(tmp_path: Path) -> None:
    head = changed(member("./dist/a"), 124, b"%011o\0" % 1000)
    result, archive = collected(tmp_path, head + b"x" * 900, length=0)
    assert isinstance(result, NotCollected)
    assert NOT_WHOLE in result.detail
    assert len(archive) <= 512


def test_what_is_missing_is_told_as_in_a_workspace(tmp_path: Path) -> None:
    assert refusal(tmp_path, ORDINARY, "nothing/**") == "no file of the workspace fits 'nothing/**'"
    assert refusal(tmp_path, ORDINARY, "dist/a/*") == "no file of the workspace fits 'dist/a/*'"


def test_names_are_limited_however_many_an_archive_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_files, "MAX_NAMES", 10)
    few = b"".join(member(f"./dist/{number}") for number in range(9))
    assert isinstance(collected(tmp_path, few + MARK)[0], CollectedFiles)
    assert "more than 10 files and folders" in refusal(tmp_path, few + member("./dist/9") + MARK)
    # Folders are names, too.
    assert "more than 10 files and folders" in refusal(tmp_path, member("./dist" + "/x" * 10) + MARK)
    # Neither are blocks looked at without end that are nothing at all.
    assert NOT_WHOLE in refusal(tmp_path, bytes(512 * 40) + MARK)


def test_folders_are_not_too_deep(tmp_path: Path) -> None:
    deep = member("./dist" + "/d" * collecting.MAX_DEPTH + "/a") + MARK
    assert isinstance(collected(tmp_path, deep)[0], CollectedFiles)
    deeper = member("./dist" + "/d" * 2000 + "/a") + MARK
    assert "is in more than 64 directories" in refusal(tmp_path, deeper)


def test_a_device_is_read_once_for_all_artifacts_of_a_job(tmp_path: Path) -> None:
    device = tmp_path / "out"
    device.write_bytes(ORDINARY)
    files = DeviceFiles(device)
    first = collect(
        files, ArtifactSpec(name="a", path="dist/a"), io.BytesIO(), most_bytes=MIB, room_bytes=MIB
    )
    # As if something in the VM went on to write: other headers change nothing any more.
    device.write_bytes(bytes(len(ORDINARY)))
    second = collect(
        files, ArtifactSpec(name="b", path="dist/b"), io.BytesIO(), most_bytes=MIB, room_bytes=MIB
    )
    assert isinstance(first, CollectedFiles)
    assert isinstance(second, CollectedFiles)
    os.truncate(device, 512)
    third = collect(
        files, ArtifactSpec(name="b", path="dist/b"), io.BytesIO(), most_bytes=MIB, room_bytes=MIB
    )
    assert isinstance(third, NotCollected)
    assert third.detail == "dist/b became shorter while it was read"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(("make", "words"), [(_fifo, "is no plain file any more"), (_link, "cannot be read")])
def test_what_takes_the_place_of_the_device_is_not_read(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    make(tmp_path / "out")
    spec = ArtifactSpec(name="dist", path="**")
    result = collect(DeviceFiles(tmp_path / "out"), spec, io.BytesIO(), most_bytes=MIB, room_bytes=MIB)
    assert isinstance(result, NotCollected)
    assert words in result.detail


NAMES = st.sampled_from(
    ["./dist/a", "./dist/b", "./dist", "./dist/../a", "./dist/a/b", "x", "whole", "./" + "y" * 120]
)
TYPES = st.sampled_from([b"0", b"\0", b"1", b"2", b"3", b"5", b"6", b"x", b"g", b"L", b"K", b"S", b"7"])
MEMBERS = st.builds(
    lambda name, content, kind, target: member(name, content, type=kind, linkname=target),
    NAMES,
    st.binary(max_size=600),
    TYPES,
    NAMES,
)
PIECES = st.lists(st.one_of(MEMBERS, st.just(END), st.just(MARK), st.binary(max_size=600)), max_size=6)
CHANGES = st.lists(st.tuples(st.integers(0, 8191), st.binary(min_size=1, max_size=12)), max_size=4)


@settings(deadline=None)
@given(pieces=PIECES, changes=CHANGES, path=st.sampled_from(["dist/**", "**", "dist/a", "*"]))
def test_no_device_leads_to_anything_but_an_archive_or_a_failure_of_the_job(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: Sequence[bytes],
    changes: Sequence[tuple[int, bytes]],
    path: str,
) -> None:
    content = bytearray(b"".join(pieces))
    for place, replaced in changes:
        content[place : place + len(replaced)] = replaced
    result, archive = collected(tmp_path_factory.getbasetemp(), bytes(content), path, length=0, most=2048)
    if isinstance(result, NotCollected):
        assert result.reason is Reason.ARTIFACT_REFUSED
        assert result.detail.isprintable()
        return
    assert len(archive) == result.size <= 2048 + 1024 + 511
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        names = opened.getnames()
        assert all(each.isreg() for each in opened)
    assert len(set(names)) == len(names) == result.files
    assert not any(name.startswith("/") or ".." in name.split("/") for name in names)
