"""Messages that we make ourselves, and stored requests of older versions."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from solstice_common.errors import InvalidMessage
from solstice_common.messages import (
    REMEMBERED_BYTES,
    JobCancelV1,
    JobRequestV1,
    decode_request,
    derive_request_id,
    stored_request,
)

REQUEST: dict[str, Any] = {
    "schema_version": "jobrequest.v1",
    "request_id": "7d444840-9dc0-51d1-b245-5ffdce74fad2",
    "source": "forgejo",
    "repo_url": "https://forge.example/heron/reeds.git",
    "commit_sha": "0123456789abcdef0123456789abcdef01234567",
    "submitted_at": "2026-01-31T12:00:00.000Z",
}


def stored(**changes: Any) -> bytes:
    return json.dumps({**REQUEST, **changes}, sort_keys=True, separators=(",", ":")).encode()


def test_composed_message_is_the_decoded_one_with_its_canonical_bytes() -> None:
    message, body = JobRequestV1.compose({"sender": "größe", **REQUEST})
    assert JobRequestV1.decode(body) == message
    assert message.encode() == body


@pytest.mark.parametrize("field", ["repo_url", "head_repo_url"])
def test_url_of_a_composed_message_becomes_canonical(field: str) -> None:
    message, body = JobRequestV1.compose({**REQUEST, field: "https://FORGE.example:443//heron/reeds/"})
    assert getattr(message, field) == "https://forge.example/heron/reeds"
    assert json.loads(body)[field] == "https://forge.example/heron/reeds"
    assert message.encode() == body


def test_url_that_is_not_given_stays_away() -> None:
    cancel, body = JobCancelV1.compose(
        {
            "cancel_id": REQUEST["request_id"],
            "source": "gitea",
            "repo_url": REQUEST["repo_url"],
            "change_number": 12,
            "submitted_at": REQUEST["submitted_at"],
        }
    )
    assert cancel.encode() == body
    assert "head_repo_url" not in json.loads(body)


def test_field_that_is_not_ours_is_never_composed() -> None:
    with pytest.raises(InvalidMessage, match=r"not known here: colour, shade") as refused:
        JobRequestV1.compose({**REQUEST, "colour": "red", "shade": 1})
    assert refused.value.reason == "invalid_field"
    with pytest.raises(ValidationError):
        JobRequestV1.compose({**REQUEST, "commit_sha": "main"})


@pytest.mark.parametrize("length", [10, REMEMBERED_BYTES + 1], ids=["small", "large"])
def test_request_is_read_alike_whether_it_is_remembered_or_not(length: int) -> None:
    body = stored(unknown="x" * length)
    assert decode_request(body) == decode_request(body) == JobRequestV1.decode(body)


def test_only_small_requests_are_remembered() -> None:
    least = len(stored(unknown=""))
    small, large = (stored(unknown="x" * (REMEMBERED_BYTES - least + more)) for more in (0, 1))
    assert (len(small), len(large)) == (REMEMBERED_BYTES, REMEMBERED_BYTES + 1)
    assert decode_request(small) is decode_request(small)
    assert decode_request(large) is not decode_request(large)


def test_request_that_was_stored_with_a_url_that_is_refused_today_is_read_as_it_was_stored() -> None:
    old = stored(repo_url="https://forge.example/river/../otter")
    with pytest.raises(InvalidMessage):
        decode_request(old)
    assert stored_request(old).repo_url == "https://forge.example/river/../otter"
    assert stored_request(old).encode() == old


def test_request_that_was_stored_with_another_spelling_is_read_in_the_one_of_today() -> None:
    assert stored_request(stored(repo_url="https://FORGE.example/x")).repo_url == "https://forge.example/x"


def test_derived_id_is_a_uuid_of_version_5() -> None:
    """The id never changes: the same request before and after an upgrade is one."""
    assert derive_request_id("hook", "delivery") == "b299a272-700b-5796-ab2f-8e554bcb54f8"
