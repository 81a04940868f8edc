"""A job asked for by the API becomes a delivery, one for each key."""

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solstice_common.http.access import LOCAL
from solstice_common.messages import JobRequestV1
from solstice_common.tracing.request_trace import message_traceparent
from solstice_common.tracing.samplers import Sampler
from solstice_forge.api.api_models import JobInput
from solstice_forge.api.request_delivery import delivery_of, is_conflict, read_job, read_key
from solstice_forge.decisions.triage import Refused
from solstice_forge.inbox.protocol import Decision, KeepResult, NewDelivery

SHA = "5ca1ab1e" * 5
JOB_INPUT = {"repo_url": "https://forge.example/tide-club/almanac.git", "commit_sha": SHA}


def api_request(**more: object) -> JobInput:
    read = read_job(orjson.dumps(JOB_INPUT | more), 1.8e9)
    assert isinstance(read, JobInput)
    return read


def delivery(
    *, caller: str = "release", key: str | None = "one", new_id: str = "fresh", **more: object
) -> NewDelivery:
    return delivery_of(
        api_request(**more), caller=caller, key=key, new_id=new_id, headers={"cookie": "secret"}, now=1.8e9
    )


def test_the_message_says_who_asked_and_what_for() -> None:
    made = delivery(
        ref="refs/heads/main", runs_on="linux", priority="high", repo_full_name="tide-club/almanac"
    )
    assert made.request is not None
    message = JobRequestV1.decode(made.request)
    assert message.encode() == made.request
    assert (message.source, message.source_name, message.sender, message.trusted) == (
        "manual",
        "api",
        "release",
        True,
    )
    assert (message.commit_sha, message.ref, message.runs_on) == (SHA, "refs/heads/main", "linux")
    assert (message.priority, message.repo_full_name) == ("high", "tide-club/almanac")
    assert (message.request_id, message.delivery_id) == (made.request_id, made.delivery_id)
    assert made.headers == {}


def test_a_traced_job_names_the_span_of_its_publishing_and_is_the_same_request() -> None:
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sampler = Sampler(ratio=1.0, follows_parent=True)

    def requested(sampler: Sampler | None) -> JobRequestV1:
        made = delivery_of(
            api_request(),
            caller="ci",
            key="k",
            new_id="i",
            headers={"traceparent": caller},
            now=1.8e9,
            sampler=sampler,
        )
        assert made.headers == {"traceparent": caller}
        assert made.request is not None
        return JobRequestV1.decode(made.request)

    untraced, traced = requested(None), requested(sampler)
    assert untraced.traceparent is None
    assert traced.traceparent == message_traceparent(caller, traced.request_id, sampler)
    assert traced.model_copy(update={"traceparent": None}) == untraced.model_copy(
        update={"traceparent": None}
    )


@pytest.mark.parametrize(
    ("more", "not_before"),
    [
        ({}, None),
        ({"delay_seconds": 0}, None),
        ({"delay_seconds": 90}, "2027-01-15T08:01:30.000Z"),
        ({"not_before": "2027-01-15T10:00:00+01:00"}, "2027-01-15T09:00:00.000Z"),
        ({"not_before": "2001-01-01T00:00:00Z"}, "2001-01-01T00:00:00.000Z"),
    ],
    ids=["at once", "no delay", "delay", "offset", "past"],
)
def test_the_message_says_when_it_is_to_start(more: dict[str, Any], not_before: str | None) -> None:
    made = delivery(**more)
    assert made.request is not None
    message = JobRequestV1.decode(made.request)
    assert message.not_before == not_before
    assert not message.model_extra


def test_the_same_delay_asked_for_later_is_the_same_request() -> None:
    def requested(now: float, **more: object) -> NewDelivery:
        return delivery_of(api_request(**more), caller="ci", key="k", new_id="i", headers={}, now=now)

    first, second = requested(1.8e9, delay_seconds=60), requested(1.8e9 + 30, delay_seconds=60)
    assert (first.request_id, first.content_key) == (second.request_id, second.content_key)
    assert first.request_id != requested(1.8e9, delay_seconds=61).request_id


def test_one_moment_written_in_two_ways_is_the_same_request() -> None:
    in_utc = delivery(not_before="2027-01-15T09:00:00Z")
    assert delivery(not_before="2027-01-15T10:00:00.000+01:00").request_id == in_utc.request_id


@pytest.mark.parametrize(
    "more",
    [
        {"not_before": "1971-01-02T00:00:01Z"},
        {"not_before": "9999-12-31T23:59:59Z"},
        {"delay_seconds": 366 * 86400 + 1},
        {"delay_seconds": -1},
        {"delay_seconds": 1.5},
        {"not_before": "1970-01-01T00:00:00"},
        {"not_before": "1970-01-01T00:00:00Z", "delay_seconds": 0},
    ],
    ids=["too far", "very far", "too long", "negative", "no integer", "no offset", "both"],
)
def test_times_that_are_refused(more: dict[str, object]) -> None:
    refused = read_job(orjson.dumps(JOB_INPUT | more), 0.0)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.reason) == (400, "malformed")
    assert next(iter(more)) in refused.detail


def test_a_caller_without_a_token_has_no_name() -> None:
    made = delivery(caller=LOCAL)
    assert made.request is not None
    assert JobRequestV1.decode(made.request).sender is None


def test_same_key_and_body_is_the_same_delivery() -> None:
    assert delivery(new_id="a") == delivery(new_id="b", ref=None)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"caller": "review"}, id="of another caller"),
        pytest.param({"key": "two"}, id="under another key"),
        pytest.param({"key": None}, id="without a key"),
    ],
)
def test_other_requests_are_other_deliveries(other: dict[str, str]) -> None:
    assert delivery().delivery_id != delivery(**other).delivery_id


def test_another_body_under_the_same_key_is_noticed() -> None:
    first, second = delivery(), delivery(runs_on="linux")
    assert first.delivery_id == second.delivery_id
    assert first.request_id is not None
    stored = KeepResult(
        delivery_id=first.delivery_id,
        decision=Decision.DUPLICATE,
        reason="duplicate_delivery",
        request_ids=(first.request_id,),
    )
    assert is_conflict(second, stored)
    assert not is_conflict(first, stored)


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        ([], None),
        (['"8e03978e-40d5-43dd-bc93-6894a57f9324"'], "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (["8e03978e-40d5-43dd-bc93-6894a57f9324"], "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (['"a \\"b\\" \\\\c"'], 'a "b" \\c'),
        (["x" * 255], "x" * 255),
    ],
    ids=["none", "as the draft says", "without quotes", "with escapes", "longest"],
)
def test_keys_that_are_understood(sent: list[str], key: str | None) -> None:
    assert read_key(sent) == key


@pytest.mark.parametrize(
    "sent",
    [[""], ['""'], ['"'], ['"a'], ['a"b" c'], ["a b"], ["é"], ["x" * 256], ['"a\\b"'], ["a", "a"], ["a\n"]],
    ids=repr,
)
def test_keys_that_are_refused(sent: list[str]) -> None:
    refused = read_key(sent)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.reason) == (400, "bad_idempotency_key")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "body: "),
        (b"[]", "body: "),
        (b"\xff", "body: "),
        (b"{}", "repo_url: is missing; commit_sha: is missing"),
        (orjson.dumps(JOB_INPUT | {"commit_sha": "main"}), "commit_sha: "),
        (orjson.dumps(JOB_INPUT | {"repo_url": "ext::sh -c id"}), "repo_url: "),
        (
            orjson.dumps(JOB_INPUT | {"repo_url": "https://me:secret@forge.example/a"}),
            "must not hold credentials",
        ),
        (orjson.dumps(JOB_INPUT | {"repo_url": "."}), "repo_url: "),
        (orjson.dumps(JOB_INPUT | {"workflow_path": "../w.kdl"}), "workflow_path: "),
        (orjson.dumps(JOB_INPUT | {"priority": "urgent"}), "priority: "),
        (orjson.dumps(JOB_INPUT | {"trusted": True}), "trusted: is not known here"),
        (orjson.dumps(JOB_INPUT | {"ref": "a\nb"}), "ref: "),
    ],
    ids=[
        "empty",
        "list",
        "no UTF-8",
        "nothing",
        "branch",
        "helper",
        "password",
        "folder",
        "path",
        "priority",
        "field",
        "control",
    ],
)
def test_bodies_that_are_refused(body: bytes, sentence: str) -> None:
    refused = read_job(body, 0.0)
    assert isinstance(refused, Refused)
    assert (refused.status, refused.reason) == (400, "malformed")
    assert sentence in refused.detail
    assert "secret@" not in refused.detail


FIELDS = st.dictionaries(
    st.sampled_from([*JOB_INPUT, "ref", "runs_on", "x"]), st.text(max_size=20) | st.none(), max_size=4
)


@given(st.binary(max_size=100) | FIELDS.map(lambda fields: orjson.dumps(JOB_INPUT | fields)))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_body_is_an_input_or_refused(body: bytes) -> None:
    read = read_job(body, 0.0)
    if isinstance(read, JobInput):
        made = delivery_of(read, caller="x", key=None, new_id="i", headers={}, now=0.0)
        assert made.request is not None
        JobRequestV1.decode(made.request)
