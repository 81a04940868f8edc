"""Files of a cache come back as they were, and nothing else does."""

import hashlib
import io
import os
import random
import socket
import stat
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solstice_orchestrator.worker.caches import packing, unpacking
from solstice_orchestrator.worker.caches.cache_tar import (
    END,
    FILE,
    FOLDER,
    LINK,
    TarMember,
    header_of,
    padding,
)
from solstice_orchestrator.worker.caches.packing import (
    CacheRefused,
    CacheRoots,
    PackedFiles,
    pack,
    stays_within,
)
from solstice_orchestrator.worker.caches.unpacking import unpack

MIB = 1024**2
NUMBERS = count()


def roots(path: Path) -> CacheRoots:
    for each in (path / "work", path / "home"):
        each.mkdir(exist_ok=True, parents=True)
    return CacheRoots(workspace=path / "work", home=path / "home")


def packed(path: Path, *paths: str, most_bytes: int = MIB) -> tuple[bytes, PackedFiles]:
    out = io.BytesIO()
    found = pack(roots(path), paths or ("c",), out, most_bytes=most_bytes)
    assert hashlib.sha256(out.getvalue()).hexdigest() == found.digest
    assert len(out.getvalue()) == found.size
    return out.getvalue(), found


def unpacked(path: Path, archive: bytes, *paths: str, digest: str = "", most_bytes: int = MIB) -> int:
    return unpack(
        io.BytesIO(archive),
        digest or hashlib.sha256(archive).hexdigest(),
        roots(path),
        paths or ("c",),
        path / f"aside-{next(NUMBERS)}",
        most_bytes=most_bytes,
    )


def archive_of(*members: TarMember | bytes, end: bytes = END) -> bytes:
    content = b"".join(header_of(each) if isinstance(each, TarMember) else each for each in members)
    return zstandard.compress(content + end)


def file_of(name: bytes, content: bytes = b"x") -> bytes:
    return header_of(TarMember(FILE, name, len(content), 0o644, 0)) + content + padding(len(content))


TOP = TarMember(FOLDER, b"0", 0, 0o755, 0)


def tree(path: Path) -> dict[bytes, tuple[object, ...]]:
    """All below a path: kinds, modes, times and contents."""
    found: dict[bytes, tuple[object, ...]] = {}
    top = os.fsencode(path)
    for folder, folders, files in os.walk(top):
        for name in [folder, *(folder + b"/" + each for each in (*folders, *files))]:
            status = os.lstat(name)
            content: object = None
            if stat.S_ISLNK(status.st_mode):
                content = Path(os.fsdecode(name)).readlink()
            elif stat.S_ISREG(status.st_mode):
                content = Path(os.fsdecode(name)).read_bytes()
            found[name[len(top) :]] = (status.st_mode, status.st_mtime_ns, content)
    return found


def test_a_tree_comes_back_with_modes_times_and_links(tmp_path: Path) -> None:
    source = roots(tmp_path / "a")
    top = source.workspace / "c"
    (top / "empty").mkdir(parents=True)
    (top / "deep/er").mkdir(parents=True)
    (top / "deep/er/file").write_bytes(random.Random(1).randbytes(3000))
    (top / "deep/er/up").symlink_to("../../empty")
    (top / "dangling").symlink_to("nothing/here")
    (top / "long").symlink_to("./" + "x" * 300)
    every = os.fsencode(top) + b"/" + bytes(n for n in range(1, 256) if n != ord("/"))[:200]
    Path(os.fsdecode(every)).write_bytes(b"")
    (top / "run").write_text("x")
    (top / "run").chmod(0o4755)
    os.utime(top / "run", ns=(1, 1_500_000_000_123_456_789))
    (top / "deep/er").chmod(0o500)
    (source.home / ".cache/x").mkdir(parents=True)
    (source.home / ".cache/x/y").write_text("home")
    archive, found = packed(tmp_path / "a", "c", "~/.cache/x", "nothing")
    assert (found.files, found.content_bytes) == (7, 3005)
    assert unpacked(tmp_path / "b", archive, "c", "~/.cache/x", "nothing") == 3005
    restored = roots(tmp_path / "b")
    before, after = tree(top), tree(restored.workspace / "c")
    # A program that takes its owner's rights does so no more.
    mode, *rest = before[b"/run"]
    assert isinstance(mode, int)
    before[b"/run"] = (mode & ~stat.S_ISUID, *rest)
    assert after == before
    assert tree(restored.home).keys() == tree(source.home).keys()
    assert not (restored.workspace / "nothing").exists()


def test_equal_files_make_equal_archives(tmp_path: Path) -> None:
    for name, order in (("a", "xyz"), ("b", "zyx")):
        (roots(tmp_path / name).workspace / "c").mkdir()
        for each in order:
            (tmp_path / name / "work/c" / each).write_text(each)
            os.utime(tmp_path / name / "work/c" / each, ns=(5, 5))
        os.utime(tmp_path / name / "work/c", ns=(5, 5))
    assert packed(tmp_path / "a") == packed(tmp_path / "b")


def test_a_path_may_be_a_file_and_is_put_beside_what_is_there(tmp_path: Path) -> None:
    (roots(tmp_path).workspace / "c").mkdir()
    (tmp_path / "work/c/one").write_text("cached")
    archive, _ = packed(tmp_path, "c/one")
    (tmp_path / "work/c/one").write_text("tracked")
    (tmp_path / "work/c/two").write_text("tracked")
    unpacked(tmp_path, archive, "c/one")
    assert (tmp_path / "work/c/one").read_text() == "cached"
    assert (tmp_path / "work/c/two").read_text() == "tracked"


def test_a_directory_is_merged_with_what_is_there(tmp_path: Path) -> None:
    archive = archive_of(TOP, file_of(b"0/one"), TarMember(FOLDER, b"0/d", 0, 0o755, 0), file_of(b"0/d/f"))
    (roots(tmp_path).workspace / "c/d").mkdir(parents=True)
    (tmp_path / "work/c/d/g").write_text("tracked")
    unpacked(tmp_path, archive)
    assert sorted(path.name for path in (tmp_path / "work/c").rglob("*")) == ["d", "f", "g", "one"]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def sparse(path: Path) -> None:
    with path.open("w") as file:
        file.truncate(2**40)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (link_to("/etc/passwd"), "d/x is a link to /etc/passwd, which leads out of the cache"),
        (link_to("../.."), "leads out of the cache"),
        (link_to("../../c"), "leads out of the cache"),
        (link_to("y/../.."), "leads out of the cache"),
        (fifo, "d/x is no file, directory or link"),
        (listening, "is no file, directory or link"),
        pytest.param(
            device,
            "is no file, directory or link",
            marks=pytest.mark.skipif(
                os.geteuid() != 0, reason="not asked for: only root may make a device, and this is not root"
            ),
        ),
        (lambda path: path.write_bytes(bytes(MIB + 1)), "more than 1 MiB, which a cache may have"),
        (sparse, "more than 1 MiB"),
    ],
)
def test_what_may_not_be_in_a_cache_is_named(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    (roots(tmp_path).workspace / "c/d").mkdir(parents=True)
    make(tmp_path / "work/c/d/x")
    with pytest.raises(CacheRefused) as caught:
        packed(tmp_path)
    assert words in str(caught.value)


def test_a_path_leads_through_no_link(tmp_path: Path) -> None:
    (roots(tmp_path).workspace / "c").symlink_to("/etc")
    with pytest.raises(CacheRefused, match="c is no directory"):
        packed(tmp_path, "c/passwd")
    with pytest.raises(CacheRefused, match="its path is a link"):
        packed(tmp_path, "c")
    archive = archive_of(file_of(b"0"))
    with pytest.raises(CacheRefused, match="c is a link or a file there"):
        unpacked(tmp_path, archive, "c/evil/x")
    assert not Path("/etc/evil").exists()
    # In the place of a link comes what the cache has.
    unpacked(tmp_path, archive, "c")
    assert (tmp_path / "work/c").read_text() == "x"


def test_there_is_no_archive_of_nothing_and_none_of_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CacheRefused, match="nothing at its path"):
        packed(tmp_path)
    (tmp_path / "work/c/a/b").mkdir(parents=True)
    with pytest.raises(CacheRefused, match="nothing at its paths"):
        packed(tmp_path, "c", "d")
    (tmp_path / "work/c/a/b/f").touch()
    monkeypatch.setattr(packing, "MAX_DEPTH", 2)
    with pytest.raises(CacheRefused, match="more than 2 directories"):
        packed(tmp_path)
    monkeypatch.setattr(packing, "MAX_NAMES", 2)
    with pytest.raises(CacheRefused, match="more than 2 files"):
        packed(tmp_path)
    with pytest.raises(CacheRefused, match="too long"):
        pack(roots(tmp_path), ("c",), io.BytesIO(), most_bytes=MIB, is_ended=lambda: True)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([file_of(b"/etc/x")], "a name that leads out of it: /etc/x"),
        ([file_of(b"../x")], "a name that leads out"),
        ([TOP, file_of(b"0/../../x")], "a name that leads out"),
        ([TOP, file_of(b"0//x")], "a name that leads out"),
        ([file_of(b"1")], "a name that leads out"),
        ([file_of(b"00")], "a name that leads out"),
        ([file_of(b"")], "a name that leads out"),
        ([TOP, file_of(b"0/a"), file_of(b"0/a/b")], "a directory is missing"),
        ([TOP, TarMember(LINK, b"0/l", 0, 0, 0, b"/etc"), file_of(b"0/l/x")], "a link that leads out"),
        ([TOP, TarMember(LINK, b"0/l", 0, 0, 0, b"d"), file_of(b"0/l/x")], "a directory is missing"),
        ([TOP, TarMember(LINK, b"0/l", 0, 0, 0, b"../x")], "a link that leads out"),
        ([TarMember(LINK, b"0", 0, 0, 0, b"x")], "a link that leads out"),
        ([TOP, TarMember(LINK, b"0/l", 5, 0, 0, b"x")], "has content"),
        ([file_of(b"0", bytes(MIB + 1))], "more than 1 MiB"),
        ([header_of(TarMember(FILE, b"0", 2**33 - 1, 0, 0))], "more than 1 MiB"),
        ([TOP, *(TarMember(FOLDER, b"0" + b"/d" * n, 0, 0o700, 0) for n in range(1, 80))], "in one another"),
        ([b"x" * 512], "is damaged"),
        ([header_of(TarMember(FILE, b"0", 5000, 0, 0))], "is damaged"),
        ([TarMember(b"3", b"0", 0, 0, 0)], "of the type"),
        ([TarMember(b"1", b"0", 0, 0, 0, b"x")], "of the type"),
    ],
)
def test_of_a_hostile_archive_nothing_is_restored(
    tmp_path: Path, members: Iterable[TarMember | bytes], words: str
) -> None:
    with pytest.raises(CacheRefused) as caught:
        unpacked(tmp_path, archive_of(*members))
    assert words in str(caught.value)
    assert list((tmp_path / "work").iterdir()) == []
    assert list(tmp_path.glob("x")) == []


def test_a_second_member_of_a_name_is_no_way_out(tmp_path: Path) -> None:
    link = TarMember(LINK, b"0/a", 0, 0, 0, b"b")
    with pytest.raises(CacheRefused, match="a name twice"):
        unpacked(tmp_path, archive_of(TOP, link, file_of(b"0/a")))
    assert list((tmp_path / "work").iterdir()) == []


def test_bombs_end_where_the_limit_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = archive_of(header_of(TarMember(FILE, b"0", 512 * MIB, 0, 0)), bytes(64 * MIB))
    with pytest.raises(CacheRefused, match="more than 1 MiB"):
        unpacked(tmp_path, bomb)
    window = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27)
    ).compress(random.Random(1).randbytes(9 * MIB))
    with pytest.raises(CacheRefused, match="is damaged"):
        unpacked(tmp_path, window)
    monkeypatch.setattr(unpacking, "MAX_NAMES", 3)
    with pytest.raises(CacheRefused, match="more than 3 members"):
        unpacked(tmp_path, archive_of(TOP, *(file_of(b"0/%d" % n) for n in range(5))))


def test_an_archive_with_another_digest_is_not_restored(tmp_path: Path) -> None:
    archive = archive_of(TOP, file_of(b"0/x"))
    with pytest.raises(CacheRefused, match="another SHA-256"):
        unpacked(tmp_path, archive, digest="0" * 64)
    with pytest.raises(CacheRefused, match="another SHA-256"):
        unpacked(tmp_path, archive + b"more", digest=hashlib.sha256(archive).hexdigest())
    assert list((tmp_path / "work").iterdir()) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_of_a_damaged_archive_nothing_is_restored(tmp_path: Path, data: st.DataObject) -> None:
    archive = bytearray(archive_of(TOP, file_of(b"0/x", b"content" * 50)))
    digest = hashlib.sha256(archive).hexdigest()
    place = data.draw(st.integers(0, len(archive) - 1))
    if data.draw(st.booleans()):
        del archive[place:]
    else:
        archive[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises((CacheRefused, OSError)):
        unpacked(tmp_path, bytes(archive), digest=digest)
    assert list((tmp_path / "work").iterdir()) == []


LINKS = st.dictionaries(
    st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "d/e/b"]),
    st.lists(st.sampled_from(["..", "a", "b", "d", "e", "."]), min_size=1, max_size=5).map("/".join),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(LINKS)
def test_links_that_may_stay_lead_nowhere_else_together(tmp_path: Path, links: dict[str, str]) -> None:
    """The model is the file system itself."""
    top = tmp_path / f"{next(NUMBERS)}/x/y/z"
    (top / "d/e").mkdir(parents=True)
    for name, target in links.items():
        if stays_within(target.encode(), name.count("/")):
            (top / name).symlink_to(target)
    for name in links:
        try:
            end = (top / name).resolve()
        except (OSError, RuntimeError):
            continue
        assert end.is_relative_to(top.resolve())
