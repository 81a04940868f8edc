"""The meaning of a server's answer to a publish."""

import pytest

from solstice_common.broker.jetstream.jetstream_publisher import read_answer, together
from solstice_common.broker.protocol import Published, PublishStatus

YES = Published(PublishStatus.CONFIRMED)
NO = Published(PublishStatus.REJECTED, "full")
PERHAPS = Published(PublishStatus.UNKNOWN, "late")


@pytest.mark.parametrize(
    ("headers", "data", "status", "detail"),
    [
        (None, b'{"stream":"s","seq":7}', PublishStatus.CONFIRMED, ""),
        (None, b'{"stream":"s","seq":7,"duplicate":true}', PublishStatus.CONFIRMED, ""),
        ({"Status": "503"}, b"", PublishStatus.REJECTED, "JetStream is not available"),
        (
            None,
            b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}',
            PublishStatus.REJECTED,
            "maximum messages exceeded (10077)",
        ),
        (None, b"", PublishStatus.UNKNOWN, "cannot be read"),
        (None, b'{"seq":"7"}', PublishStatus.UNKNOWN, "cannot be read"),
        (None, b"[]", PublishStatus.UNKNOWN, "cannot be read"),
    ],
)
def test_only_a_sequence_without_an_error_is_a_confirm(
    headers: dict[str, str] | None, data: bytes, status: PublishStatus, detail: str
) -> None:
    answer = read_answer(headers, data)
    assert answer.status is status
    assert detail in answer.detail


def test_message_for_several_queues_is_confirmed_by_all_and_rejected_by_all() -> None:
    assert together([YES, YES]) == YES
    assert together([NO, NO]) == NO
    assert together([YES, NO]).status is PublishStatus.UNKNOWN
    assert together([NO, PERHAPS]).status is PublishStatus.UNKNOWN
