"""Messages are encoded and decoded byte for byte; wrong ones are refused."""

import json
import random
import re
import string
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.errors import InvalidMessage
from solstice_common.messages import (
    MESSAGES,
    JobCancelV1,
    JobRequestV1,
    JobStatusV1,
    Priority,
    Source,
    derive_request_id,
)
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_common.messages.fields import MAX_INTEGER
from solstice_common.values.times import format_seconds, format_timestamp, parse_timestamp

REQUEST: dict[str, Any] = {
    "schema_version": "jobrequest.v1",
    "request_id": "7d444840-9dc0-51d1-b245-5ffdce74fad2",
    "source": "forgejo",
    "repo_url": "https://forge.example/heron/reeds.git",
    "commit_sha": "0123456789abcdef0123456789abcdef01234567",
    "submitted_at": "2026-01-31T12:00:00.000Z",
}
CANCEL: dict[str, Any] = {
    "schema_version": "jobcancel.v1",
    "cancel_id": "7d444840-9dc0-51d1-b245-5ffdce74fad2",
    "source": "gitea",
    "repo_url": "https://forge.example/heron/reeds.git",
    "change_number": 12,
    "submitted_at": "2026-01-31T12:00:00.000Z",
}
STATUS: dict[str, Any] = {
    "schema_version": "jobstatus.v1",
    "status_id": "7d444840-9dc0-51d1-b245-5ffdce74fad2",
    "request_id": "7d444840-9dc0-51d1-b245-5ffdce74fad2",
    "run_id": "7d444840-9dc0-51d1-b245-5ffdce74fad2",
    "sequence": 1,
    "source": "gitlab",
    "repo_url": "https://forge.example/heron/reeds.git",
    "commit_sha": "0123456789abcdef0123456789abcdef01234567",
    "context": "solstice/build",
    "state": "running",
    "occurred_at": "2026-01-31T12:00:00.000Z",
}


def canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def request(**changes: object) -> bytes:
    return canonical({**REQUEST, **changes})


def refusal(body: bytes) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as raised:
        JobRequestV1.decode(body)
    return raised.value


GOOD_URLS = [
    "https://forge.example/heron/reeds.git",
    "http://forge.example:3000/heron/reeds",
    "https://forge.example",
    "https://[2001:db8::1]:8443/x.git",
    "https://forge.example/a%20b/c.git",
    "https://bücher.example/größe.git",
    "ssh://git@forge.example/heron/reeds.git",
    "ssh://git@forge.example:2222/heron/reeds.git",
    "ssh://forge.example/~heron/reeds.git",
    "git://forge.example/reeds.git",
    "file:///srv/git/reeds.git",
]
BAD_URLS = {
    "option": "--upload-pack=touch /tmp/x",
    "one dash": "-x",
    "helper program": "ext::sh -c touch% /tmp/x",
    "helper program with slashes": "ext::https://forge.example/x",
    "fd helper": "fd::17",
    "scp-like": "git@forge.example:heron/reeds.git",
    "local path": "/srv/git/reeds.git",
    "relative path": "../reeds.git",
    "empty": "",
    "no host": "https:///heron/reeds.git",
    "nothing after the scheme": "https://",
    "upper-case scheme": "HTTPS://forge.example/x",
    "ftp": "ftp://forge.example/x",
    "javascript": "javascript://forge.example/%0aalert(1)",
    "user": "https://token@forge.example/x",
    "user and password": "https://heron:secret@forge.example/x",
    "empty user": "https://@forge.example/x",
    "password over ssh": "ssh://git:secret@forge.example/x",
    "empty password over ssh": "ssh://git:@forge.example/x",
    "option as host": "ssh://-oProxyCommand=touch%20x/x",
    "option as user": "ssh://-oProxyCommand=x@forge.example/x",
    "option as host after a user": "ssh://git@-oProxyCommand=x/x",
    "two hosts": "ssh://a@b@forge.example/x",
    "file on another machine": "file://forge.example/srv/x",
    "file of no path": "file://",
    "file of a relative path": "file://localhost",
    "line feed": "https://forge.example/x\ny",
    "trailing line feed": "https://forge.example/x\n",
    "tab": "https://forge.example/x\ty",
    "nul": "https://forge.example/x\0",
    "space": "https://forge.example/x y",
    "delete": "https://forge.example/x\x7f",
    "c1 control": "https://forge.example/x\x85y",
    "no-break space": "https://forge.example/x\u00a0y",
    "line separator": "https://forge.example/x\u2028y",
    "right-to-left override": "https://forge.example/x\u202ey",
    "encoded line feed": "https://forge.example%0Ahost=evil.example/x",
    "encoded nul": "https://forge.example/x%00",
    "backslash": "https://forge.example\\@evil.example/x",
    "port of letters": "https://forge.example:abc/x",
    "port too high": "https://forge.example:65536/x",
    "port 0": "https://forge.example:0/x",
    "half an IPv6 address": "https://[2001:db8::1/x",
    "query": "https://forge.example/x?y",
    "fragment": "https://forge.example/x#y",
    "dots": "https://forge.example/river/../attacker",
    "encoded dots": "https://forge.example/river/%2e%2E/attacker",
    "encoded slash": "https://forge.example/river%2f..%2fattacker",
    "encoded host": "https://forge%2eexample/x",
    "dots encoded twice": "https://forge.example/river/%252e%252e/attacker",
    "odd address": "https://0x7f.1/x",
    "too long": "https://forge.example/" + "x" * 2048,
}


class TestRepoUrl:
    @pytest.mark.parametrize("url", GOOD_URLS)
    def test_what_git_may_fetch_is_accepted(self, url: str) -> None:
        assert JobRequestV1.decode(request(repo_url=url)).repo_url == url

    @pytest.mark.parametrize("url", BAD_URLS.values(), ids=BAD_URLS.keys())
    @pytest.mark.parametrize("field", ["repo_url", "head_repo_url"])
    def test_what_is_hostile_or_unclear_is_refused_under_its_name(self, field: str, url: str) -> None:
        error = refusal(request(**{field: url}))
        assert error.reason == "invalid_field"
        assert error.detail.startswith(f"{field}: ")

    def test_the_pattern_of_the_json_schema_agrees_as_far_as_a_pattern_can(self) -> None:
        pattern = re.compile(JobRequestV1.model_json_schema()["properties"]["repo_url"]["pattern"])
        beyond = {"nul", "delete", "right-to-left override", "encoded line feed", "encoded nul", "two hosts",
                  "port of letters", "port too high", "dots encoded twice", "odd address", "port 0", "half an IPv6 address", "too long"}  # fmt: skip
        assert [url for url in GOOD_URLS if not pattern.search(url)] == []
        passed = {name for name, url in BAD_URLS.items() if pattern.search(url)}
        # Python's `$` also stands before a last line feed; that of the JSON Schema does not.
        assert passed - {"trailing line feed"} <= beyond

    @pytest.mark.parametrize(
        "url", ["https://heron:secret@forge.example/x", "ssh://git:secret@forge.example/x"]
    )
    def test_a_refusal_does_not_repeat_the_password(self, url: str) -> None:
        assert "secret" not in str(refusal(request(repo_url=url)))

    @given(st.text(max_size=60).map(lambda rest: f"https://{rest}") | st.text(max_size=60))
    def test_no_text_does_more_than_pass_or_be_refused(self, url: str) -> None:
        try:
            body = request(repo_url=url)
        except UnicodeEncodeError:
            return
        try:
            message = JobRequestV1.decode(body)
        except InvalidMessage:
            return
        assert JobRequestV1.decode(message.encode()) == message


class TestFields:
    @pytest.mark.parametrize("field", [field for field in REQUEST if field != "schema_version"])
    def test_every_field_of_the_published_v1_is_needed(self, field: str) -> None:
        error = refusal(canonical({key: value for key, value in REQUEST.items() if key != field}))
        assert error.reason == "invalid_field"
        assert error.detail == f"{field}: is missing"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("request_id", "7D444840-9DC0-51D1-B245-5FFDCE74FAD2"),
            ("request_id", "7d4448409dc051d1b2455ffdce74fad2"),
            ("request_id", 7),
            ("source", "sourcehut"),
            ("source", "GitHub"),
            ("source", None),
            ("commit_sha", "0123456789abcdef0123456789abcdef0123456"),
            ("commit_sha", "0123456789ABCDEF0123456789ABCDEF01234567"),
            ("commit_sha", "0123456789abcdef0123456789abcdef01234567\n"),
            ("commit_sha", "main"),
            ("commit_sha", "0" * 41),
            ("commit_sha", 123),
            ("workflow_path", ""),
            ("workflow_path", "/etc/passwd"),
            ("workflow_path", "../workflow.kdl"),
            ("workflow_path", "a/../../b"),
            ("workflow_path", "a/.."),
            ("workflow_path", "-x"),
            ("workflow_path", "a\\b"),
            ("workflow_path", "a\nb"),
            ("workflow_path", "x" * 513),
            ("workflow_job_id", ""),
            ("workflow_job_id", "x" * 256),
            ("workflow_job_id", "red\u001b[31m"),
            ("runs_on", ""),
            ("runs_on", "-linux"),
            ("runs_on", "linux amd64"),
            ("runs_on", ["linux"]),
            ("ref", "refs/heads/a\0b"),
            ("sender", "a\u0085b"),
            ("change_number", 0),
            ("change_number", -1),
            ("change_number", 7.0),
            ("change_number", "7"),
            ("change_number", True),
            ("change_number", MAX_INTEGER + 1),
            ("change_number", 10**30),
            ("trusted", 1),
            ("trusted", "true"),
            ("priority", "urgent"),
            ("priority", 4),
            ("idempotency_key", ""),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"),
            ("traceparent", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ],
    )  # fmt: skip
    def test_a_wrong_value_is_refused_under_its_name(self, field: str, value: object) -> None:
        error = refusal(request(**{field: value}))
        assert error.reason == "invalid_field"
        assert error.detail.startswith(f"{field}: ")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("commit_sha", "0" * 64),
            ("workflow_path", ".solstice/release.kdl"),
            ("workflow_path", "a/..b/c"),
            ("workflow_job_id", "unit tests, größer"),
            ("runs_on", "linux-amd64.big_1"),
            ("change_number", MAX_INTEGER),
            ("trusted", False),
            ("priority", "critical"),
            ("runs_on", None),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ],
    )
    def test_a_right_value_is_kept(self, field: str, value: object) -> None:
        body = request(**{field: value})
        message = JobRequestV1.decode(body)
        assert getattr(message, field) == value
        assert message.encode() == body

    def test_every_wrong_field_is_named_at_once(self) -> None:
        error = refusal(request(commit_sha="main", runs_on="-"))
        assert "commit_sha: " in error.detail
        assert "runs_on: " in error.detail

    def test_words_become_members_of_their_lists(self) -> None:
        message = JobRequestV1.decode(request(priority="high"))
        assert message.source is Source.FORGEJO
        assert message.priority is Priority.HIGH

    @pytest.mark.parametrize("field", [field for field in STATUS if field != "schema_version"])
    def test_every_field_that_a_status_needs_is_needed(self, field: str) -> None:
        with pytest.raises(InvalidMessage, match=f"invalid_field: {field}: is missing"):
            JobStatusV1.decode(canonical({key: value for key, value in STATUS.items() if key != field}))

    @pytest.mark.parametrize(
        ("field", "value"),
        [("sequence", 0), ("sequence", 1.5), ("attempt", 0), ("exit_code", "1"), ("exit_code", 2**53),
         ("description", "x" * 4097), ("job_id", "build"), ("state", "")],
    )  # fmt: skip
    def test_a_wrong_value_of_a_status_is_refused(self, field: str, value: object) -> None:
        with pytest.raises(InvalidMessage, match=f"invalid_field: {field}: "):
            JobStatusV1.decode(canonical({**STATUS, field: value}))


class TestTimestamps:
    @pytest.mark.parametrize(
        ("text", "moment"),
        [
            ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
            ("2026-01-31t12:00:00z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
            ("2026-01-31T12:00:00.5Z", datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),
            ("2026-01-31T12:00:00.123456789Z", datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)),
            ("2026-01-31T12:00:00.000001+00:00", datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)),
            ("2026-01-31T12:00:00-00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
            ("2024-02-29T23:59:59Z", datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC)),
        ],
    )
    def test_a_time_in_utc_is_kept_as_written_and_names_its_moment(self, text: str, moment: datetime) -> None:
        message = JobRequestV1.decode(request(submitted_at=text))
        assert message.submitted_at == text
        assert parse_timestamp(text) == moment

    @pytest.mark.parametrize(
        "text",
        ["", "yesterday", "2026-01-31", "2026-01-31 12:00:00Z", "2026-01-31T12:00:00", "2026-01-31T12:00Z",
         "2026-01-31T12:00:00+01:00", "2026-02-30T12:00:00Z", "2026-13-01T12:00:00Z", "2026-01-31T24:00:00Z",
         "2026-01-31T12:60:00Z", "2026-01-31T23:59:60Z", "0000-01-31T12:00:00Z", "2026-01-31T12:00:00.Z",
         "2026-01-31T12:00:00.1234567890Z", "2026-01-31T12:00:00Z\n", "٢٠٢٦-01-31T12:00:00Z", "20260131T120000Z"],
    )  # fmt: skip
    def test_anything_else_is_refused(self, text: str) -> None:
        assert refusal(request(submitted_at=text)).detail.startswith("submitted_at: ")

    @given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)))  # noqa: DTZ001  given UTC below
    def test_what_we_write_we_read_to_the_millisecond(self, naive: datetime) -> None:
        moment = naive.replace(tzinfo=UTC)
        text = format_timestamp(moment)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
        assert timedelta(0) <= moment - parse_timestamp(text) < timedelta(milliseconds=1)

    def test_other_time_zones_are_written_in_utc(self) -> None:
        moment = datetime(2026, 1, 31, 13, 30, tzinfo=timezone(timedelta(hours=1)))
        assert format_timestamp(moment) == "2026-01-31T12:30:00.000Z"

    @given(st.integers(0, 4_102_444_800_000))
    def test_a_moment_in_seconds_is_written_like_one_of_the_calendar(self, milliseconds: int) -> None:
        # A little later, within the same millisecond: binary fractions do not hit it exactly.
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC) + timedelta(
            milliseconds=milliseconds % 1000
        )
        assert format_seconds(milliseconds / 1000 + 0.0002) == format_timestamp(moment)


class TestBytes:
    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"", "not_json"),
            (b"{", "not_json"),
            (b"nonsense", "not_json"),
            (request() + b"x", "not_json"),
            (b"\xef\xbb\xbf" + request(), "not_json"),
            (request().replace(b"forgejo", b"forge\xff"), "not_utf8"),
            (request().decode().encode("utf-16"), "not_utf8"),
            (request().replace(b"forgejo", b"\\ud800"), "not_json"),
            (b"[" * 100_000, "not_json"),
            (request(x=0).replace(b'"x":0', b'"x":' + b"[" * 900 + b"]" * 900), "not_json"),
            (request(x=0).replace(b'"x":0', b'"x":' + b"9" * 5000), "not_json"),
            (b"[]", "not_an_object"),
            (b"null", "not_an_object"),
            (b'"jobrequest.v1"', "not_an_object"),
            (request(schema_version="jobrequest.v2"), "unknown_version"),
            (request(schema_version="jobstatus.v1"), "unknown_version"),
            (request(schema_version=1), "unknown_version"),
            (request(schema_version=["x" * 200_000]), "unknown_version"),
            (request(x=0).replace(b'"x":0', b'"x":NaN'), "invalid_field"),
            (request(x=0).replace(b'"x":0', b'"x":[{"y":-Infinity}]'), "invalid_field"),
            (request(x=0).replace(b'"x":0', b'"x":1e999'), "invalid_field"),
            (request(x="x" * MAX_MESSAGE_BYTES), "oversize"),
            (b"\xff" * (MAX_MESSAGE_BYTES + 1), "oversize"),
        ],
        ids=["empty", "half", "nonsense", "something after", "byte order mark", "not utf-8", "utf-16",
             "lone surrogate", "only brackets", "deep", "5000 digits", "array", "null", "text", "newer version",
             "another message", "version of a number", "version of a list", "nan", "infinity", "1e999", "oversize",
             "oversize rubbish"],
    )  # fmt: skip
    def test_each_kind_of_rubbish_has_its_reason(self, body: bytes, reason: str) -> None:
        error = refusal(body)
        assert error.reason == reason
        assert error.detail
        assert len(error.detail) < 1000

    def test_the_largest_message_is_read(self) -> None:
        room = MAX_MESSAGE_BYTES - len(request(x=""))
        assert len(body := request(x="y" * room)) == MAX_MESSAGE_BYTES
        assert JobRequestV1.decode(body).encode() == body

    @pytest.mark.parametrize(
        "unknown",
        [0, -1, 2**63, 10**40, 1.5, 1e300, "", "größer 世界 \u2028 \x7f \u0001 \n", None, True, [], {},
         [1, [2, {"b": 1, "a": None}]], {"ä": 1, "z": 2, "": 3}],
        ids=repr,
    )  # fmt: skip
    @pytest.mark.parametrize("model", MESSAGES)
    def test_what_we_do_not_know_survives(
        self, model: type[JobRequestV1 | JobCancelV1 | JobStatusV1], unknown: object
    ) -> None:
        (known,) = (each for each in (REQUEST, CANCEL, STATUS) if each["schema_version"] == model.VERSION)
        first = model.decode(canonical({**known, "x_new": unknown})).encode()
        assert json.loads(first) == {**known, "x_new": unknown}
        assert model.decode(first).encode() == first

    def test_what_is_not_canonical_becomes_so(self) -> None:
        shuffled = list(REQUEST.items())
        random.Random(3).shuffle(shuffled)
        assert JobRequestV1.decode(json.dumps(dict(shuffled), indent=4).encode()).encode() == request()

    def test_an_explicit_null_stays_and_an_absent_field_stays_absent(self) -> None:
        body = request(runs_on=None)
        message = JobRequestV1.decode(body)
        assert message.encode() == body
        assert b"ref" not in body
        assert message.ref is None

    @pytest.mark.parametrize("value", [float("nan"), object(), "\ud800"], ids=["nan", "object", "surrogate"])
    def test_what_json_cannot_carry_is_refused_when_encoding(self, value: object) -> None:
        message = JobRequestV1.model_validate({**REQUEST, "x_new": value})
        with pytest.raises(InvalidMessage) as raised:
            message.encode()
        assert raised.value.reason == "invalid_field"


KEYS = st.sampled_from(sorted(JobRequestV1.model_fields)) | st.text(max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
OPTIONAL: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
    "runs_on": lambda: st.sampled_from(["linux", "illumos"]),
    "ref": lambda: st.text(alphabet=string.ascii_letters + "/-", min_size=1, max_size=40),
    "change_number": lambda: st.integers(1, MAX_INTEGER),
    "trusted": st.booleans,
    "priority": lambda: st.sampled_from([str(one) for one in Priority]),
    "x_new": lambda: JSON,
    "zz": lambda: JSON,
}


def reads_or_refuses(body: bytes) -> None:
    for model in MESSAGES:
        try:
            message = model.decode(body)
        except InvalidMessage:
            continue
        again = message.encode()
        assert model.decode(again).encode() == again


class TestNothingElseIsRaised:
    @given(st.binary(max_size=200))
    def test_by_any_bytes(self, body: bytes) -> None:
        reads_or_refuses(body)

    @given(st.dictionaries(KEYS, JSON, max_size=8))
    def test_by_any_object(self, document: dict[str, Any]) -> None:
        reads_or_refuses(canonical({**REQUEST, **document}))
        reads_or_refuses(canonical({**STATUS, **document}))

    @given(st.data())
    def test_by_a_message_that_was_damaged(self, data: st.DataObject) -> None:
        body = bytearray(request(ref="refs/heads/größer", x_new=[1, {"a": 2.5}]))
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(body) - 1))
            body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        reads_or_refuses(bytes(body))

    @given(st.fixed_dictionaries({}, optional={name: make() for name, make in OPTIONAL.items()}))
    def test_a_canonical_message_comes_back_byte_for_byte(self, optional: dict[str, Any]) -> None:
        first = JobRequestV1.decode(canonical({**REQUEST, **optional})).encode()
        assert JobRequestV1.decode(first).encode() == first
        assert json.loads(first) == {**REQUEST, **optional}


def test_a_derived_id_is_stable_and_separates_its_parts() -> None:
    assert derive_request_id("hook", "delivery") == derive_request_id("hook", "delivery")
    ids = {derive_request_id(*parts) for parts in [("ab", "c"), ("a", "bc"), ("abc",), ("ab", "c", "")]}
    assert len(ids) == 4
    body = request(request_id=derive_request_id("hook", "delivery"))
    assert JobRequestV1.decode(body).encode() == body


@pytest.mark.parametrize("given", [REQUEST, CANCEL, STATUS], ids=["request", "cancel", "status"])
def test_a_message_without_a_version_is_of_its_routing_keys_and_stays_without(given: dict[str, Any]) -> None:
    (model,) = (each for each in MESSAGES if given["schema_version"] == each.VERSION)
    fields = {name: value for name, value in given.items() if name != "schema_version"}
    body = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    message = model.decode(body)
    assert message.model_dump()["schema_version"] == model.VERSION
    assert message.encode() == body


@pytest.mark.parametrize("given", [REQUEST, CANCEL, STATUS], ids=["request", "cancel", "status"])
def test_what_a_message_does_not_hold_is_none(given: dict[str, Any]) -> None:
    (model,) = (each for each in MESSAGES if given["schema_version"] == each.VERSION)
    message = model.decode(canonical(given)).model_dump()
    absent = message.keys() - given.keys()
    assert absent
    assert {name: message[name] for name in absent} == dict.fromkeys(absent)


@pytest.mark.parametrize("given", [REQUEST, CANCEL, STATUS], ids=["request", "cancel", "status"])
@pytest.mark.parametrize(
    "again",
    [
        b'"source":"github",',
        b'"source" :"github",',
        b'"\\u0073ource":"github",',
        b'"unknown":1,"unknown":2,',
        b'"unknown":{"a":[{"b":1,"b":2}]},',
        b'"unknown":1e999,"x":"\\":","unknown":2,',
    ],
    ids=["plain", "space", "escaped", "unknown", "nested", "hidden"],
)
def test_a_key_that_stands_twice_is_refused(given: dict[str, Any], again: bytes) -> None:
    (model,) = (each for each in MESSAGES if given["schema_version"] == each.VERSION)
    body = b"{" + again + orjson.dumps(given)[1:]
    with pytest.raises(InvalidMessage) as refused:
        model.decode(body)
    assert refused.value.reason == "invalid_field"


def test_one_name_in_two_objects_and_a_quoted_colon_are_no_doubling() -> None:
    given = {
        **REQUEST,
        "unknown": {"source": {"source": 10**30}},
        "other": 'a":b',
        "third": [{"a": 1}, {"a": 2}],
    }
    body = json.dumps(given, sort_keys=True, separators=(",", ":")).encode()
    assert JobRequestV1.decode(body).encode() == body
