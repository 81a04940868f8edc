"""Marks of a log: they are kept, and no output is taken for one."""

import pytest

from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.store.views import ChunkKind, LogChunk
from solstice_orchestrator.web.api.log_rows import LogRows
from solstice_orchestrator.worker.executors.limited_log import LimitedLog


async def test_a_log_keeps_marks_between_its_head_and_its_tail() -> None:
    written: list[bytes] = []

    async def log(data: bytes) -> None:
        written.append(data)

    limited = LimitedLog(log, 40)
    await limited.mark(LogMark.of("$ one"))
    await limited.write(b"a" * 29 + b"\n")
    await limited.write(b"b" * 50 + b"\n")
    await limited.mark(LogMark.of("$ dropped around"))
    await limited.write(b"c" * 50 + b"\n12\n")
    await limited.mark(LogMark.of("$ last"))
    await limited.write(b"3456")
    await limited.end()
    marks = [bytes(each) for each in written if isinstance(each, LogMark)]
    assert [mark for mark in marks if mark.startswith(b"$")] == [
        b"$ one\n",
        b"$ dropped around\n",
        b"$ last\n",
    ]
    assert written[-3:] == [b"12\n", b"$ last\n", b"3456"]


@pytest.mark.parametrize(
    "printed", [b"text", b"text\r", b"\x1b[1A\x1b[2K", b"\x1b]0;title", b"\x1b[31;8m", b"\xf0\x9f"]
)
async def test_output_reaches_no_row_of_a_mark(printed: bytes) -> None:
    rows = LogRows()
    chunks = [
        LogChunk(sequence=1, at=0.0, data=b"$ checkout\n! cancelled\n" + printed),
        LogChunk(sequence=2, at=0.0, data=b"$ <b>test</b>\n", kind=ChunkKind.MARK),
        LogChunk(sequence=3, at=0.0, data=b"\r\x1b[1A\x1b[2K\b\b\b! mine\n"),
    ]
    update = await rows.add(chunks)
    assert update is not None
    assert [row.html for row in update.rows if row.number is None] == ["$ &lt;b&gt;test&lt;/b&gt;"]
    texts = [row.text for row in update.rows]
    assert texts[:2] == ["$ checkout", "! cancelled"]
    assert texts[-1] == "! mine"
