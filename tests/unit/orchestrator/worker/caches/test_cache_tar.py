"""Archives of caches are tar, with names of any byte and times of nanoseconds."""

import io
import tarfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.worker.artifacts.tar_headers import BadHeader
from solstice_orchestrator.worker.caches.cache_tar import (
    END,
    EXTENDED,
    FILE,
    FOLDER,
    LINK,
    TarMember,
    header_of,
    read_member,
)

NAMES = st.binary(min_size=1, max_size=400).filter(lambda name: b"\0" not in name)
MEMBERS = st.builds(
    TarMember,
    type=st.sampled_from([FILE, FOLDER, LINK]),
    name=NAMES,
    size=st.integers(0, 8**11 - 1),
    mode=st.integers(0, 0o777),
    mtime_ns=st.integers(0, 8**11 * 10**9 - 1),
    target=NAMES,
)


def read_back(written: bytes) -> TarMember | None:
    extended = b""
    if written[156:157] == EXTENDED:
        first = read_member(written[:512])
        assert first is not None
        extended, written = written[512 : 512 + first.size], written[512 + (first.size + 511) // 512 * 512 :]
    assert len(written) == 512
    return read_member(written, extended)


@given(MEMBERS)
def test_a_member_is_read_as_it_was_written(member: TarMember) -> None:
    assert read_back(header_of(member)) == member


def test_other_programs_read_it_too() -> None:
    long = b"0/" + b"n" * 300
    members = [
        TarMember(FOLDER, b"0", 0, 0o755, 1_000_000_000),
        TarMember(FILE, long, 0, 0o600, 1_234_567_890_123_456_789),
        TarMember(LINK, b"0/l", 0, 0o777, 0, b"t" * 200),
    ]
    archive = b"".join(map(header_of, members)) + END
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {each.name: each for each in tar}
    assert found["0"].isdir()
    assert found[long.decode()].mode == 0o600
    assert found[long.decode()].pax_headers["mtime"] == "1234567890.123456789"
    assert found["0/l"].linkname == "t" * 200


def test_an_empty_block_is_the_end() -> None:
    assert read_member(END[:512]) is None


@given(
    st.binary(min_size=512, max_size=512) | st.just(header_of(TarMember(FILE, b"a", 1, 0, 1))), st.binary()
)
def test_other_bytes_are_refused_or_read_and_nothing_else(block: bytes, extended: bytes) -> None:
    with suppress(BadHeader):
        read_member(block, extended)


@pytest.mark.parametrize(
    "extended",
    [
        b"x",
        b"5 a=\n",
        b"99 path=a\n",
        b"0 \n",
        b"9 size=1\n",
        b"11 mtime=-1\n",
        b"13 mtime=1e99\n",
        b"9" * 30,
        b"-5 path=a\n",
    ],
)
def test_an_unknown_or_wrong_record_is_refused(extended: bytes) -> None:
    with pytest.raises(BadHeader):
        read_member(header_of(TarMember(FILE, b"a", 0, 0, 0)), extended)


def test_other_kinds_of_members_are_refused() -> None:
    for kind in (tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE):
        header = tarfile.TarInfo("a")
        header.type = kind
        with pytest.raises(BadHeader, match="of the type"):
            read_member(header.tobuf(tarfile.USTAR_FORMAT))
