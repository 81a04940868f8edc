"""Bodies of requests and cancels are admitted, or refused with a reason."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.broker.delivery import Refuse
from solstice_common.messages import JobCancelV1, JobRequestV1
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_orchestrator.domain.admission import examine, examine_cancel
from tests.builders import job_cancel, job_request

GOOD = orjson.loads(job_request().encode())


def test_a_request_is_taken_as_it_is() -> None:
    request = job_request(later=1)
    assert examine(request.encode(), 0.0) == request


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xfe", "not_utf8"),
        (b"{", "not_json"),
        (b"[]", "not_an_object"),
        (b"", "not_json"),
        (orjson.dumps({**GOOD, "schema_version": "jobrequest.v2"}), "unknown_version"),
        (orjson.dumps({**GOOD, "repo_url": "ext::sh -c true"}), "invalid_field"),
        (orjson.dumps({**GOOD, "commit_sha": 5}), "invalid_field"),
        (b" " * (MAX_MESSAGE_BYTES + 1), "oversize"),
    ],
    ids=["bytes", "broken", "list", "empty", "version", "url", "type", "size"],
)
def test_poison_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    examined = examine(body, 0.0)
    assert isinstance(examined, Refuse)
    assert examined.reason == reason
    assert examined.detail


def test_a_request_to_cancel_is_taken_as_it_is_and_nothing_else_is_one() -> None:
    cancel = job_cancel(later=1)
    assert examine_cancel(cancel.encode()) == cancel
    examined = examine_cancel(job_request().encode())
    assert isinstance(examined, Refuse)
    assert examined.reason == "unknown_version"


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        orjson.dumps
    )
)
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    assert isinstance(examine(body, 0.0), Refuse | JobRequestV1)
    assert isinstance(examine_cancel(body), Refuse | JobCancelV1)


@pytest.mark.parametrize(
    ("not_before", "is_admitted"),
    [
        ("2027-01-15T08:00:00Z", True),
        ("2001-01-01T00:00:00Z", True),
        ("2028-01-16T08:00:00Z", True),
        ("2028-01-18T08:00:00Z", False),
        ("9999-12-31T23:59:59Z", False),
    ],
    ids=["now", "past", "a year and a day", "a day more than clocks are apart", "the end of time"],
)
def test_a_start_in_the_far_future_is_refused(not_before: str, is_admitted: bool) -> None:
    request = job_request(not_before=not_before)
    examined = examine(request.encode(), 1.8e9)
    if is_admitted:
        assert examined == request
    else:
        assert isinstance(examined, Refuse)
        assert examined.reason == "not_before_too_far"
        assert not_before in examined.detail
