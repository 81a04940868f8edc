"""The part of a log that a `Range` header requests."""

import pytest

from solstice_orchestrator.web.formats.byte_ranges import ByteRange, byte_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-9", ByteRange(0, 9)),
        ("bytes=5-", ByteRange(5, None)),
        ("bytes=-7", ByteRange(-7, None)),
        ("Bytes = 0-0", ByteRange(0, 0)),
        ("bytes=9-5", None),
        ("bytes=-0", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-1", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("bytes=\u0661-\u0662", None),
        ("bytes=" + "9" * 16 + "-", None),
        ("", None),
        (None, None),
    ],
)
def test_one_range_is_read_and_all_else_means_everything(
    header: str | None, expected: ByteRange | None
) -> None:
    assert byte_range(header) == expected
