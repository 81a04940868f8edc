"""Dead letters are read, chosen, counted, exported, and published again."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.broker import DeadLetter, Message
from solstice_common.broker.dead_letters.counting import counts
from solstice_common.broker.dead_letters.dead_letter_facts import BRIEF_CHARACTERS, facts_of
from solstice_common.broker.dead_letters.dead_letter_queue import plain
from solstice_common.broker.dead_letters.dead_letter_routes import chosen_routes, import_queue
from solstice_common.broker.dead_letters.export_lines import InvalidLine, exported, imported
from solstice_common.broker.dead_letters.hashed_bodies import HashedBody, LargeBody
from solstice_common.broker.dead_letters.replay_message import (
    MAX_HISTORY,
    NotReplayable,
    came_back,
    newest,
    replay_message,
)
from solstice_common.broker.dead_letters.selection import Selection, condition, died_since
from solstice_common.broker.protocol import HELD_BODY_BYTES
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, jobs_route, split_jobs_route

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ROUTE = jobs_route(BrokerSettings())
REQUEST = {"request_id": "r-1", "repo_full_name": "lantern/harbour", "priority": "high"}
REFUSAL = {
    "x-solstice-reason": "invalid_field",
    "x-solstice-detail": "commit_sha: too short",
    "x-solstice-queue": "solstice.jobs.v1",
    "x-solstice-refused-at": "2026-03-01T11:00:00.000Z",
    "x-solstice-refused-by": "orchestrator",
    "x-solstice-attempt": 2,
}


def dead(body: bytes | Mapping[str, Any] = REQUEST, **changes: Any) -> DeadLetter:
    given = {
        "queue": ROUTE.dlq,
        "body": body if isinstance(body, bytes) else json.dumps(dict(body)).encode(),
        "headers": {**REFUSAL, "x-solstice-idempotency-key": "k-1"},
        "type": "jobrequest.v1",
        "correlation_id": "r-1",
        "message_id": "m-1",
        "timestamp": NOW - timedelta(hours=2),
        **changes,
    }
    return DeadLetter(**given)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
names = texts | st.sampled_from(
    ["x-death", "x-delivery-count", "x-solstice-reason", "x-solstice-refused-at", "x-solstice-history", "x-solstice-run",
     "x-solstice-attempt", "x-solstice-idempotency-key", "traceparent"]
)  # fmt: skip
dead_letters = st.builds(
    DeadLetter,
    queue=texts.filter(bool),
    body=st.binary(max_size=60) | st.builds(lambda value: json.dumps(value).encode(), values),
    headers=st.dictionaries(names, values, max_size=6),
    type=st.none() | texts,
    correlation_id=st.none() | texts,
    message_id=st.none() | texts,
    priority=st.none() | st.integers(0, 255),
    timestamp=st.none() | st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0)),  # noqa: DTZ001
    content_type=st.none() | texts,
    app_id=st.none() | texts,
)  # fmt: skip


class TestFindings:
    def test_a_refusal_of_ours_is_read_whole(self) -> None:
        found = facts_of(dead())
        assert (found.reason, found.detail) == ("invalid_field", "commit_sha: too short")
        assert found.dead_since == datetime(2026, 3, 1, 11, tzinfo=UTC)
        assert (found.repository, found.priority, found.request_id) == (
            "lantern/harbour",
            Priority.HIGH,
            "r-1",
        )
        assert (found.refused_by, found.attempt, found.run_id) == ("orchestrator", 2, "")

    def test_the_brokers_own_dead_letter_has_the_brokers_reason_and_time(self) -> None:
        death = {"reason": "delivery_limit", "time": "2026-03-01T09:30:00.000Z", "count": 1}
        found = facts_of(dead(headers={"x-death": [death, {"reason": "rejected"}]}))
        assert found.reason == "delivery_limit"
        assert found.dead_since == datetime(2026, 3, 1, 9, 30, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("reason", "extra_bytes", "expected"),
        [("rejected", 1, "oversize"), ("rejected", 0, "rejected"), ("expired", 1, "expired")],
    )
    def test_a_rejected_body_that_no_service_reads_is_too_large(
        self, reason: str, extra_bytes: int, expected: str
    ) -> None:
        body = b" " * (MAX_MESSAGE_BYTES + extra_bytes)
        found = facts_of(dead(body, headers={"x-death": [{"reason": reason}]}))
        assert found.reason == expected
        assert (str(len(body)) in found.detail) == (expected == "oversize")

    def test_without_any_word_the_reason_is_unknown_and_the_time_the_publishers(self) -> None:
        found = facts_of(dead(b"\xff", headers={}))
        assert (found.reason, found.dead_since, found.repository) == ("unknown", NOW - timedelta(hours=2), "")

    @pytest.mark.parametrize(
        ("priority", "expected"),
        [(None, None), (1, "low"), (4, "default"), (7, "high"), (9, "critical"), (31, "critical")],
    )
    def test_the_class_follows_from_the_messages_priority(
        self, priority: int | None, expected: str | None
    ) -> None:
        assert facts_of(dead(b"{}", priority=priority)).priority == expected

    def test_the_request_is_named_by_its_body_where_the_message_names_none(self) -> None:
        found = facts_of(dead(correlation_id=None, headers={}))
        assert (found.request_id, found.attempt) == ("r-1", 1)

    def test_a_body_nested_too_deeply_says_nothing(self) -> None:
        assert facts_of(dead(b"[" * 100_000)).repository == ""

    def test_a_list_shows_the_facts_and_a_single_one_everything(self) -> None:
        headers = {**REFUSAL, "x-solstice-run": "run-7", "x-solstice-history": "one\ntwo"}
        found = facts_of(dead(headers=headers, content_type="application/json"))
        assert found.document() == {
            "id": found.id,
            "queue": ROUTE.dlq,
            "reason": "invalid_field",
            "detail": "commit_sha: too short",
            "dead_since": "2026-03-01T11:00:00.000Z",
            "repository": "lantern/harbour",
            "priority": "high",
            "request_id": "r-1",
            "run_id": "run-7",
            "type": "jobrequest.v1",
            "attempt": 2,
            "bytes": len(found.dead_letter.body),
        }
        assert found.whole_document() == found.document() | {
            "refused_by": "orchestrator",
            "history": ["one", "two"],
            "message_id": "m-1",
            "content_type": "application/json",
            "headers": headers,
            "body": json.dumps(REQUEST),
            "body_omitted_bytes": 0,
        }
        bare = facts_of(dead(b"{}", headers={}, timestamp=None, correlation_id=None)).whole_document()
        empty = ("repository", "request_id", "run_id", "refused_by", "dead_since")
        assert [bare[name] for name in empty] == [None] * len(empty)

    def test_a_brief_one_lists_the_same_and_holds_neither_body_nor_headers(self) -> None:
        found = facts_of(dead(headers={**REFUSAL, "x": "y" * 100_000}))
        brief = found.brief()
        assert brief.document() == found.document()
        assert (brief.dead_letter.body, brief.dead_letter.headers) == (b"", {})
        long = facts_of(dead(headers={**REFUSAL, "x-solstice-detail": "d" * 100_000})).brief()
        assert long.detail == "d" * BRIEF_CHARACTERS

    def test_a_large_body_is_measured_whole_and_shown_in_part(self) -> None:
        large = LargeBody(size=15 << 20, digest=b"d" * 32)
        found = facts_of(
            dead(b'{"repo_full_name": "a/b"}', large=large, headers={"x-death": [{"reason": "rejected"}]})
        )
        assert (found.reason, found.detail) == ("oversize", f"{15 << 20} bytes, at most 262144 are allowed")
        assert found.document()["bytes"] == 15 << 20
        assert found.whole_document()["body_omitted_bytes"] == (15 << 20) - 25
        assert found.repository == "", "what follows may name another"

    def test_a_large_body_has_the_same_facts_whole_and_cut(self) -> None:
        body = json.dumps(REQUEST).encode().ljust(HELD_BODY_BYTES + 1)
        arriving = HashedBody(len(body))
        arriving.add(body)
        beginning, large = arriving.read()
        whole, cut = facts_of(dead(body)), facts_of(dead(beginning, large=large))
        assert whole.document() == cut.document()

    @given(dead_letters)
    def test_nothing_that_a_message_holds_makes_reading_fail(self, dead_letter: DeadLetter) -> None:
        found = facts_of(dead_letter)
        json.dumps(found.whole_document())
        assert found.reason


class TestIdentity:
    @pytest.mark.parametrize("size", [HELD_BODY_BYTES, HELD_BODY_BYTES + 1])
    def test_a_body_has_one_id_whole_or_cut(self, size: int) -> None:
        body = bytes(size)
        arriving = HashedBody(size)
        arriving.add(body)
        beginning, large = arriving.read()
        assert dead(beginning, large=large).id == dead(body).id

    def test_large_bodies_that_begin_alike_are_two(self) -> None:
        large = [LargeBody(size=15 << 20, digest=bytes([number])) for number in range(2)]
        assert dead(b"x", large=large[0]).id != dead(b"x", large=large[1]).id

    def test_the_brokers_counters_are_no_part_of_it(self) -> None:
        counted = dead(headers={**dead().headers, "x-delivery-count": 3, "x-acquired-count": 4})
        assert counted.id == dead().id

    @pytest.mark.parametrize(
        "changes",
        [
            {"body": b"{}"},
            {"message_id": "m-2"},
            {"headers": {}},
            {"correlation_id": None},
            {"type": None},
            {"priority": 3},
            {"timestamp": None},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_every_property_of_its_publisher_is_part_of_its_id(self, changes: dict[str, Any]) -> None:
        assert dead(**changes).id != dead().id

    @given(dead_letters)
    def test_an_export_keeps_it(self, dead_letter: DeadLetter) -> None:
        again = imported(exported(facts_of(dead_letter)))
        assert again.id == dead_letter.id
        assert (again.body, again.queue, dict(again.headers)) == (
            dead_letter.body,
            dead_letter.queue,
            dict(dead_letter.headers),
        )

    def test_an_export_says_since_when_it_is_dead(self) -> None:
        assert json.loads(exported(facts_of(dead())))["dead_since"] == "2026-03-01T11:00:00.000Z"

    def test_an_export_is_read_by_people_and_keeps_every_priority_of_a_message(self) -> None:
        line = exported(facts_of(dead('{"who": "Grüße"}'.encode(), priority=255)))
        assert "Grüße" in line
        assert imported(line).priority == 255

    @given(dead_letters)
    def test_a_line_of_an_export_is_one_line(self, dead_letter: DeadLetter) -> None:
        assert "\n" not in exported(facts_of(dead_letter))

    def test_headers_of_all_kinds_become_what_json_can_hold(self) -> None:
        given = {
            "a": b"\xffx",
            "b": datetime(2026, 1, 1, tzinfo=UTC),
            "c": [float("nan"), 1.5, None],
            "d": {"e": True},
        }
        assert plain(given) == {
            "a": "\\xffx",
            "b": "2026-01-01T00:00:00.000Z",
            "c": ["nan", 1.5, None],
            "d": {"e": True},
        }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nothing", "no JSON"),
        ("[]", "no JSON object"),
        ('{"body": ""}', "queue"),
        ('{"queue": "q"}', "body"),
        ('{"queue": "q", "body": "", "body_base64": ""}', "one of"),
        ('{"queue": "q", "body_base64": "!"}', "body_base64"),
        ('{"queue": "q", "body_base64": "é"}', "body_base64"),
        ('{"queue": "q", "body": "", "type": "\\ud800"}', "type: .*surrogates"),
        ('{"queue": "\\ud800", "body": ""}', "queue: .*surrogates"),
        ('{"queue": "q", "body": "", "headers": []}', "headers"),
        ('{"queue": "q", "body": "", "priority": 256}', "priority"),
        ('{"queue": "q", "body": "", "priority": true}', "priority"),
        ('{"queue": "q", "body": "", "timestamp": "soon"}', "timestamp"),
        ('{"queue": "q", "body": "", "type": 1}', "type"),
        ('{"queue": "q", "body": "", "colour": 1}', "colour"),
    ],
)
def test_a_line_that_holds_no_dead_letter_says_why(line: str, words: str) -> None:
    with pytest.raises(InvalidLine, match=words):
        imported(line)


@pytest.mark.parametrize(
    "line",
    [json.dumps({"q" * 10_000: 1}), json.dumps({"queue": "q", "body": "", "timestamp": "t" * 10_000})],
)
def test_a_wrong_value_is_not_repeated_at_length(line: str) -> None:
    with pytest.raises(InvalidLine) as raised:
        imported(line)
    assert len(str(raised.value)) < 200


def test_half_a_character_is_exported_and_keeps_the_identity() -> None:
    line = exported(facts_of(dead(headers={"h\ud800": "\ud800"})))
    assert line.isascii()
    assert imported(line).headers == {"h\ud800": "\ud800"}


class TestSelection:
    @pytest.mark.parametrize(
        ("selection", "fits"),
        [
            (Selection(), True),
            (Selection(reason="invalid_field"), True),
            (Selection(reason="not_json"), False),
            (Selection(repository="lantern/harbour"), True),
            (Selection(repository="lantern/*"), True),
            (Selection(repository="lantern"), False),
            (Selection(repository="[z-a]"), False),
            (Selection(priority=Priority.HIGH), True),
            (Selection(priority=Priority.LOW), False),
            (Selection(since=NOW - timedelta(hours=1)), True),
            (Selection(since=NOW), False),
            (Selection(where={"x-solstice-attempt": "2"}), True),
            (Selection(where={"x-solstice-attempt": "3"}), False),
            (Selection(where={"missing": ""}), False),
            (Selection(reason="invalid_field", priority=Priority.LOW), False),
            (Selection(ids=("0000",)), False),
        ],
    )
    def test_all_conditions_have_to_hold(self, selection: Selection, fits: bool) -> None:
        assert selection.fits(facts_of(dead())) is fits

    def test_whole_ids_and_beginnings_may_stand_beside_each_other(self) -> None:
        whole, other = facts_of(dead()), facts_of(dead(b"other"))
        assert Selection(ids=[whole.id]).fits(whole)
        assert not Selection(ids=[whole.id]).fits(other)
        assert Selection(ids=[whole.id, other.id[:5]]).fits(other)

    def test_the_beginning_of_an_id_is_enough(self) -> None:
        assert Selection(ids=("ffff", dead().id[:6])).fits(facts_of(dead()))

    def test_a_truth_is_written_as_json_writes_it(self) -> None:
        loud = facts_of(dead(headers={"loud": True}))
        assert Selection(where={"loud": "true"}).fits(loud)
        assert not Selection(where={"loud": "True"}).fits(loud)

    def test_a_text_is_compared_letter_by_letter(self) -> None:
        assert Selection(where={"name": "Otter"}).fits(facts_of(dead(headers={"name": "Otter"})))

    def test_only_a_selection_that_names_nothing_takes_all(self) -> None:
        assert Selection().takes_all
        assert not Selection(reason="not_json").takes_all

    def test_an_age_beyond_all_calendars_lets_everything_through(self) -> None:
        assert died_since(NOW, 3600) == NOW - timedelta(hours=1)
        assert died_since(NOW, 999_999 * 86_400) == datetime.min.replace(tzinfo=UTC)
        assert died_since(NOW, 1e300) == datetime.min.replace(tzinfo=UTC)

    def test_what_died_at_an_unknown_time_did_not_die_lately(self) -> None:
        assert not Selection(since=NOW).fits(facts_of(dead(headers={}, timestamp=None)))

    def test_a_condition_is_a_name_and_a_value(self) -> None:
        assert condition("a=b=c") == ("a", "b=c")
        for wrong in ("", "a", "=b"):
            with pytest.raises(ValueError, match="HEADER=VALUE"):
                condition(wrong)

    def test_queues_have_short_names_and_full_ones(self) -> None:
        settings = BrokerSettings()
        routes = chosen_routes(settings, [])
        assert [each.dlq for each in routes if each.is_declared] == [ROUTE.dlq, CANCELS.dlq, STATUSES.dlq]
        (statuses,) = chosen_routes(settings, ["statuses", STATUSES.dlq, STATUSES.queue])
        assert (statuses.dlq, statuses.replays, statuses.kind) == (STATUSES.dlq, STATUSES, "statuses")
        known = r"requests \(solstice.jobs.v1.dlq\), cancels \(solstice.cancels.v1.dlq\), statuses"
        with pytest.raises(ConfigurationError, match=known):
            chosen_routes(settings, ["jobs"])

    @pytest.mark.parametrize("priorities", ["one", "split"])
    def test_requests_are_those_of_all_classes_under_any_setting(
        self, priorities: Literal["one", "split"]
    ) -> None:
        """Dead letters of a class stay visible after AMQP_PRIORITIES went back to one."""
        settings = BrokerSettings(amqp_priorities=priorities)
        routes = chosen_routes(settings, ["requests"])
        classes = [f"solstice.jobs.v1.{each}.dlq" for each in ("critical", "high", "low")]
        assert [each.dlq for each in routes] == ["solstice.jobs.v1.dlq", *classes]
        assert [each.is_declared for each in routes] == [True, *[priorities == "split"] * 3]
        assert {each.kind for each in routes} == {"requests"}
        (high,) = chosen_routes(settings, ["requests.high", "solstice.jobs.v1.high", classes[1]])
        assert (high.queue, high.dlq) == ("solstice.jobs.v1.high", classes[1])
        assert {each.replays for each in routes} == {jobs_route(settings)}
        (default,) = chosen_routes(settings, [ROUTE.dlq])
        assert default.name == ("requests.default" if priorities == "split" else "requests")

    def test_import_adds_to_the_named_queue_if_services_declare_it(self) -> None:
        one, split = BrokerSettings(), BrokerSettings(amqp_priorities="split")
        assert import_queue(split, "requests.low") == import_queue(split, "solstice.jobs.v1.low.dlq")
        assert import_queue(split, "requests.low") == "solstice.jobs.v1.low.dlq"
        assert import_queue(one, "solstice.jobs.v1.low.dlq") == ROUTE.dlq
        assert import_queue(split, "requests") == import_queue(one, "requests") == ROUTE.dlq
        assert import_queue(one, "cancels") == CANCELS.dlq


class TestCounting:
    def test_all_are_counted_by_queue_reason_priority_and_age(self) -> None:
        def since(**ago: int) -> dict[str, Any]:
            return {
                "x-solstice-reason": "not_json",
                "x-solstice-refused-at": (NOW - timedelta(**ago)).isoformat(),
            }

        found = [
            facts_of(dead(headers=since(minutes=59))),
            facts_of(dead(headers=since(hours=1))),
            facts_of(dead(headers=since(days=1))),
            facts_of(dead(headers=since(days=7), body=b"{}")),
            facts_of(dead(headers={}, timestamp=None)),
        ]
        counted = counts(found, NOW)
        assert counted.document() == {
            "total": 5,
            "by_queue": {ROUTE.dlq: 5},
            "by_reason": {"not_json": 4, "unknown": 1},
            "by_priority": {"high": 4, "none": 1},
            "by_age": {
                "under 1 h": 1,
                "under 1 day": 1,
                "under 7 days": 1,
                "7 days or more": 1,
                "unknown": 1,
            },
        }
        assert list(counted.by_age) == [
            "under 1 h",
            "under 1 day",
            "under 7 days",
            "7 days or more",
            "unknown",
        ]

    def test_the_most_frequent_comes_first_and_of_equals_the_first_by_name(self) -> None:
        reasons = ["b", "c", "a", "c"]
        found = [facts_of(dead(headers={"x-solstice-reason": each})) for each in reasons]
        assert list(counts(found, NOW).by_reason.items()) == [("c", 2), ("a", 1), ("b", 1)]

    @given(st.lists(dead_letters, max_size=8))
    def test_each_is_counted_once_in_each_way(self, given: list[DeadLetter]) -> None:
        counted = counts([facts_of(each) for each in given], NOW)
        for numbers in (counted.by_queue, counted.by_reason, counted.by_priority, counted.by_age):
            assert sum(numbers.values()) == len(given)


def again(dead_letter: DeadLetter) -> Message:
    message = replay_message(facts_of(dead_letter), ROUTE, replay_id="replay-1", by="a test", at=NOW)
    assert isinstance(message, Message)
    return message


class TestReplayMessage:
    @pytest.mark.parametrize(
        ("body", "queue"),
        [
            (b'{"priority":"critical"}', "solstice.jobs.v1.critical"),
            (b'{"priority":"low"}', "solstice.jobs.v1.low"),
            (b'{"priority":"default"}', "solstice.jobs.v1"),
            (b'{"priority":"urgent"}', "solstice.jobs.v1"),
            (b'{"priority":["low"]}', "solstice.jobs.v1"),
            (b"[]", "solstice.jobs.v1"),
            (b"\xff", "solstice.jobs.v1"),
            (b"[" * 100_000, "solstice.jobs.v1"),
        ],
        ids=["critical", "low", "default", "unknown", "list", "array", "bytes", "nested"],
    )
    def test_body_alone_says_which_class_it_goes_to(self, body: bytes, queue: str) -> None:
        """Neither the queue it died in nor the message's number: who publishes may choose both."""
        split = split_jobs_route(BrokerSettings())
        found = facts_of(dead(body=body, queue=split.of(Priority.HIGH).dlq, priority=7))
        message = replay_message(found, split, replay_id="replay-1", by="a test", at=NOW)
        assert isinstance(message, Message)
        assert {
            each.queue for each in (split, *split.classes.values()) if each.routing_key == message.routing_key
        } == {queue}
        assert again(dead(body=body)).routing_key == ROUTE.routing_key
        assert again(dead(body=body, type=None)).type == "jobrequest.v1"

    def test_it_is_the_message_as_it_was_on_its_old_route(self) -> None:
        message = again(
            dead(priority=7, headers={**dead().headers, "traceparent": "00-1", "x-death": [{"count": 1}]})
        )
        assert (message.exchange, message.routing_key) == (ROUTE.exchange, ROUTE.routing_key)
        assert (message.body, message.type, message.correlation_id) == (dead().body, "jobrequest.v1", "r-1")
        assert (message.priority, message.timestamp) == (7, dead().timestamp)
        assert dict(message.headers) == {
            "x-solstice-idempotency-key": "k-1",
            "traceparent": "00-1",
            "x-solstice-attempt": 3,
            "x-solstice-history": (
                "replayed 2026-03-01T12:00:00.000Z by a test: invalid_field since 2026-03-01T11:00:00.000Z"
                " (commit_sha: too short)"
            ),
            "x-solstice-replay": "replay-1",
        }

    def test_a_foreign_message_without_properties_gets_those_of_its_route(self) -> None:
        message = again(dead(headers={}, type=None, timestamp=None))
        assert (message.type, message.content_type, message.app_id, message.timestamp) == (
            ROUTE.routing_key,
            "application/json",
            "solstice-ci",
            NOW,
        )
        assert str(message.headers["x-solstice-history"]).endswith("by a test: unknown")
        again_message = again(dead(type="t", content_type="text/plain", app_id="otter"))
        assert (again_message.type, again_message.content_type, again_message.app_id) == (
            "t",
            "text/plain",
            "otter",
        )

    def test_of_a_long_reason_the_history_keeps_the_beginning(self) -> None:
        detail = "".join(chr(97 + place % 26) for place in range(500))
        message = again(dead(headers={**REFUSAL, "x-solstice-detail": detail}))
        assert str(message.headers["x-solstice-history"]).endswith(f" ({detail[:400]})")

    def test_the_history_grows_by_a_line(self) -> None:
        before = dead(headers={**dead().headers, "x-solstice-history": "one\ntwo"})
        lines = str(again(before).headers["x-solstice-history"]).splitlines()
        assert (lines[:2], len(lines)) == (["one", "two"], 3)

    def test_a_request_that_is_a_run_already_is_kept_with_what_to_do_instead(self) -> None:
        spoiled = dead(headers={**REFUSAL, "x-solstice-run": "run-7"})
        answer = replay_message(facts_of(spoiled), ROUTE, replay_id="replay-1", by="a test", at=NOW)
        assert isinstance(answer, NotReplayable)
        assert "solstice rerun run-7" in answer.why

    def test_what_comes_back_is_known_by_its_replay(self) -> None:
        headers = {**again(dead()).headers, **REFUSAL}
        assert came_back(dead(headers=headers), "replay-1")
        assert not came_back(dead(headers=headers), "replay-2")

    @given(st.lists(st.text(max_size=900).map(lambda text: "".join(text.splitlines())), max_size=40))
    def test_the_history_fits_and_keeps_the_newest(self, lines: list[str]) -> None:
        newest_entries = newest(lines)
        assert len("\n".join(newest_entries).encode(errors="replace")) <= MAX_HISTORY
        assert newest_entries[-1:] == lines[-1:]

    @pytest.mark.parametrize(
        ("lengths", "remaining"),
        [
            ([4031], 1),
            ([4032], 0),
            ([2015, 2015], 2),
            ([2016, 2015], 1),
            ([2015, 2016], 1),
            ([4012, 9, 9], 2),
        ],
        ids=str,
    )
    def test_as_many_lines_stay_as_leave_room_for_the_count_of_the_others(
        self, lengths: list[int], remaining: int
    ) -> None:
        lines = ["x" * length for length in lengths]
        left_out = len(lines) - remaining
        before = [f"... {left_out} lines before ..."] if left_out else []
        assert newest(lines) == before + lines[left_out:]

    @given(dead_letters.filter(lambda each: not facts_of(each).run_id))
    def test_no_brokers_header_is_published_and_the_key_is_kept(self, dead_letter: DeadLetter) -> None:
        message = again(dead_letter)
        assert not {"x-death", "x-delivery-count", "x-acquired-count"} & message.headers.keys()
        key = dead_letter.headers.get("x-solstice-idempotency-key")
        if isinstance(key, str):
            assert message.headers["x-solstice-idempotency-key"] == key
        assert message.body == dead_letter.body
        assert all(isinstance(value, str | int | bool) for value in message.headers.values())
