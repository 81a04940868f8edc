"""Stored statuses reach the forge in order, the newest only, through every failure."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from solstice_common.broker import Broker, Message, Published, PublishStatus, open_broker
from solstice_common.errors import BrokerUnavailable
from solstice_common.messages import Source
from solstice_common.topology import STATUSES, QueueType
from solstice_forge.metrics import Metrics
from solstice_forge.remote.http import CallTimeouts, Remote
from solstice_forge.remote.protocol import AppCredentials, ForgeAccess
from solstice_forge.statuses.call_endings import RetryRules
from solstice_forge.statuses.protocol import ReportPhase
from solstice_forge.statuses.reporter import StatusReporter
from solstice_forge.statuses.sqlite import SqliteStatuses
from tests.polling import wait_until, wait_until_true
from tests.servers.forge_api import Delayed, ForgeApi, Reply, Request, Reset, Truncated, Window, forge_api
from tests.statuses import SHA, job_status, reportable_status, run_id
from tests.traffic import drain

RULES = RetryRules(first_retry=0.02, last_retry=0.1, give_up=3600.0, horizon=1.0)
TIMEOUTS = CallTimeouts(connect=5.0, read=5.0, total=10.0)
KEY = ("river/app", SHA, "solstice/build")


def access_to(forge: ForgeApi, **changes: Any) -> ForgeAccess:
    given = ForgeAccess(name=forge.origin.value, origin=forge.origin, url=forge.url, token=forge.token)
    return replace(given, **changes)


@asynccontextmanager
async def running_reporter(
    store: SqliteStatuses,
    forge: ForgeApi,
    *,
    rules: RetryRules = RULES,
    timeouts: CallTimeouts = TIMEOUTS,
    by_way_of: Callable[[Broker], Any] = lambda broker: broker,
    **access: Any,
) -> AsyncIterator[StatusReporter]:
    """A process that reports the store's statuses to this forge, until left."""
    async with (
        open_broker(f"sqlite:///{forge_broker(store)}", name="test") as broker,
        Remote.open(access_to(forge, **access), timeouts=timeouts) as remote,
        asyncio.TaskGroup() as tasks,
    ):
        reporter = StatusReporter(
            store=store,
            remotes={forge.origin.value: remote},
            broker=by_way_of(broker),
            topology=STATUSES.topology(QueueType.QUORUM),
            metrics=Metrics(),
            rng=random.Random(1),
            rules=rules,
        )
        task = tasks.create_task(reporter.run())
        yield reporter
        reporter.finish()
        await task


def forge_broker(store: SqliteStatuses) -> Path:
    return Path(str(store._database.place)).with_name("broker.db")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStatuses]:
    async with SqliteStatuses.open(tmp_path / "statuses.db") as opened:
        yield opened


async def nothing_is_pending(store: SqliteStatuses) -> None:
    async with asyncio.timeout(60):
        while await store.pending():  # noqa: ASYNC110  another task empties it
            await asyncio.sleep(0.02)


def states(forge: ForgeApi) -> list[str]:
    return [each["state"] for each in forge.history.get(KEY, [])]


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        (Source.GITHUB, ["pending", "pending", "failure"]),
        (Source.FORGEJO, ["pending", "pending", "failure"]),
        (Source.GITEA, ["pending", "pending", "failure"]),
        (Source.GITLAB, ["pending", "running", "failed"]),
    ],
)
async def test_every_forge_shows_a_job_from_its_line_to_its_end(
    store: SqliteStatuses, origin: Source, shown: list[str]
) -> None:
    async with forge_api(origin) as forge, running_reporter(store, forge):
        for sequence, state in enumerate(("waiting", "running", "failed"), start=1):
            await store.keep([reportable_status(state, sequence=sequence, source=origin.value)], 0.0)
            await nothing_is_pending(store)
        assert states(forge) == shown
        assert forge.shown[KEY]["description"] == "It is failed"


@pytest.mark.parametrize("origin", [Source.GITHUB, Source.GITLAB])
@pytest.mark.parametrize(
    "troubles",
    [
        [Reply(status=500)] * 5,
        [Reply(status=502), Reply(status=503), Reply(status=504)],
        [Reset(), Reset(carried_out=True)],
        [Truncated(), Truncated(fits=True)],
        [Reply(status=429, headers={"retry-after": "1"})],
        [Reply(status=401), Reply(status=408), Reply(status=409)],
    ],
    ids=["500s", "a troubled proxy", "resets", "half answers", "a limit", "answers that pass"],
)
async def test_a_status_arrives_once_the_trouble_is_over(
    store: SqliteStatuses, origin: Source, troubles: list[Any]
) -> None:
    async with forge_api(origin) as forge, running_reporter(store, forge):
        forge.next(*troubles)
        await store.keep([reportable_status("succeeded", source=origin.value)], 0.0)
        await nothing_is_pending(store)
        assert forge.shown[KEY]["state"] == "success"


async def test_only_the_newest_waiting_status_is_sent(store: SqliteStatuses) -> None:
    async with forge_api(Source.FORGEJO) as forge:
        for sequence, state in enumerate(("waiting", "running", "backoff", "running", "succeeded"), start=1):
            await store.keep([reportable_status(state, sequence=sequence)], 0.0)
        async with running_reporter(store, forge):
            await nothing_is_pending(store)
        assert states(forge) == ["success"]


async def test_what_comes_late_or_twice_is_not_reported(store: SqliteStatuses) -> None:
    async with forge_api(Source.FORGEJO) as forge, running_reporter(store, forge):
        await store.keep([reportable_status("succeeded", sequence=3)], 0.0)
        await nothing_is_pending(store)
        late = [reportable_status("waiting", sequence=1), reportable_status("running", sequence=2)]
        await store.keep([*late, reportable_status("succeeded", sequence=3)], 0.0)
        assert await store.pending() == 0
        await store.keep([reportable_status("cancelled", run=0, sequence=9)], 0.0)
        assert await store.pending() == 0
        assert states(forge) == ["success"]


async def test_a_run_asked_for_again_is_pending_again(store: SqliteStatuses) -> None:
    async with forge_api(Source.FORGEJO) as forge, running_reporter(store, forge):
        await store.keep([reportable_status("failed", sequence=3)], 0.0)
        await nothing_is_pending(store)
        await store.keep([reportable_status("waiting", run=2, sequence=1)], 0.0)
        await nothing_is_pending(store)
        assert states(forge) == ["failure", "pending"]


async def test_a_final_state_waits_until_an_unanswered_call_can_no_longer_overtake_it(
    store: SqliteStatuses,
) -> None:
    timeouts = CallTimeouts(connect=5.0, read=0.3, total=0.3)
    # The forge carries out `pending` long after our timeout.
    async with (
        forge_api(Source.FORGEJO) as forge,
        running_reporter(store, forge, timeouts=timeouts, rules=replace(RULES, horizon=3.0)),
    ):
        forge.behave(lambda request: Delayed(seconds=1.5) if request.body["state"] == "pending" else None)
        await store.keep([reportable_status("running", sequence=1)], 0.0)
        await wait_until(lambda: forge_was_called(forge))
        await store.keep([reportable_status("succeeded", sequence=2)], 0.0)
        await nothing_is_pending(store)
        assert states(forge)[-1] == "success"
        assert "pending" in states(forge)
        assert "pending" not in states(forge)[states(forge).index("success") :]


def forge_was_called(forge: ForgeApi) -> bool:
    return bool(forge.slow_calls)


async def test_a_new_teller_waits_for_the_calls_that_a_dead_one_left(store: SqliteStatuses) -> None:
    async with forge_api(Source.FORGEJO) as forge:
        forge.behave(lambda request: Delayed(seconds=1.0) if request.body["state"] == "pending" else None)
        await store.keep([reportable_status("running", sequence=1)], 0.0)
        dying = asyncio.create_task(report_until_killed(store, forge))
        await wait_until(lambda: forge_was_called(forge))
        dying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await dying
        await store.keep([reportable_status("succeeded", sequence=2)], 0.0)
        async with running_reporter(store, forge, rules=replace(RULES, horizon=2.5)):
            await nothing_is_pending(store)
        assert states(forge) == ["pending", "success"]


async def report_until_killed(store: SqliteStatuses, forge: ForgeApi) -> None:
    async with running_reporter(store, forge):
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Reply(status=404, document={"message": "Not Found"}), "not_found"),
        (Reply(status=403, document={"message": "Resource not accessible"}), "forbidden"),
        (Reply(status=422, document={"message": "No commit found for SHA"}), "unprocessable"),
        (Reply(status=410, document={"message": "Gone"}), "refused"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
async def test_what_the_forge_refuses_is_a_dead_letter_with_its_answer(
    store: SqliteStatuses, answer: Reply, reason: str
) -> None:
    async with forge_api(Source.GITHUB) as forge, running_reporter(store, forge):
        forge.next(answer)
        status = reportable_status("succeeded", source="github")
        await store.keep([status], 0.0)
        await nothing_is_pending(store)
        async with open_broker(f"sqlite:///{forge_broker(store)}", name="test") as broker:
            (dead_letter,) = await waited_for(lambda: drain(broker, STATUSES.dlq, 1))
        assert dead_letter.body == status.body
        assert dead_letter.headers["x-solstice-reason"] == reason
        assert str(answer.status) in str(dead_letter.headers["x-solstice-detail"])
        assert answer.document["message"] in str(dead_letter.headers["x-solstice-detail"])
        (shown,) = await store.shown(status.request_id)
        assert shown.phase is ReportPhase.DEAD


class FailingBroker:
    """A broker that is unavailable at first, and then rejects its first messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._away, self._rejected = 2, 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def ready(self, timeout_seconds: float) -> None:
        self._away -= 1
        if self._away >= 0:
            raise BrokerUnavailable("the test's broker", "gone")
        await self._broker.ready(timeout_seconds)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        self._rejected -= 1
        if self._rejected >= 0:
            return [Published(PublishStatus.REJECTED, "full")] * len(messages)
        return await self._broker.publish(messages)


async def test_a_dead_letter_stays_until_the_broker_has_it_and_the_log_says_why(
    store: SqliteStatuses,
) -> None:
    with capture_logs() as logs:
        async with (
            forge_api(Source.GITHUB) as forge,
            running_reporter(store, forge, by_way_of=FailingBroker),
        ):
            forge.next(Reply(status=404))
            status = reportable_status("succeeded", source="github")
            await store.keep([status], 0.0)
            await nothing_is_pending(store)
            async with open_broker(f"sqlite:///{forge_broker(store)}", name="test") as broker:
                (dead_letter,) = await waited_for(lambda: drain(broker, STATUSES.dlq, 1))

            async def forgotten() -> bool:
                return not await store.dead_letters(10)

            await wait_until_true("the store has forgotten the dead letter", forgotten)
    assert dead_letter.body == status.body
    reported_events = [one for one in logs if one["event"].startswith("status.dead_letters_")]
    assert [one["event"] for one in reported_events] == [
        "status.dead_letters_paused",
        "status.dead_letters_resumed",
        "status.dead_letters_paused",
    ]
    assert (reported_events[0]["detail"], reported_events[2]["detail"]) == (
        str(BrokerUnavailable("the test's broker", "gone")),
        "rejected: full",
    )


async def waited_for(what: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(60):
        return await what()


async def test_a_dead_letter_that_is_replayed_is_reported(store: SqliteStatuses) -> None:
    async with forge_api(Source.FORGEJO) as forge, running_reporter(store, forge):
        forge.next(Reply(status=404))
        await store.keep([reportable_status("succeeded")], 0.0)
        await nothing_is_pending(store)
        assert states(forge) == []
        await store.keep([reportable_status("succeeded")], 0.0)
        await nothing_is_pending(store)
        assert states(forge) == ["success"]


async def test_one_commit_that_fails_delays_no_other(store: SqliteStatuses) -> None:
    async with forge_api(Source.FORGEJO) as forge, running_reporter(store, forge):
        forge.behave(lambda request: Reply(status=500) if SHA in request.path else None)
        other = "c" * 40
        await store.keep([reportable_status("failed"), reportable_status("succeeded", commit_sha=other)], 0.0)

        async def one_is_left() -> bool:
            return await store.pending() == 1

        # The forge shows it a moment before we know that it does.
        await wait_until_true("the other one is told", one_is_left)
        assert ("river/app", other, "solstice/build") in forge.shown
        forge.behave(lambda request: None)
        await nothing_is_pending(store)
        assert states(forge) == ["failure"]


async def test_after_hours_of_failures_a_status_becomes_a_dead_letter(store: SqliteStatuses) -> None:
    async with (
        forge_api(Source.FORGEJO) as forge,
        running_reporter(store, forge, rules=replace(RULES, give_up=0.3)),
    ):
        forge.behave(lambda _request: Reply(status=500))
        await store.keep([reportable_status("failed")], 0.0)
        await nothing_is_pending(store)
        async with open_broker(f"sqlite:///{forge_broker(store)}", name="test") as broker:
            (dead_letter,) = await waited_for(lambda: drain(broker, STATUSES.dlq, 1))
        assert dead_letter.headers["x-solstice-reason"] == "forge_unavailable"
        assert int(str(dead_letter.headers["x-solstice-attempt"])) > 1


async def test_an_app_writes_check_runs_with_tokens_for_one_repository(store: SqliteStatuses) -> None:
    async with forge_api(Source.GITHUB) as forge:
        app = AppCredentials(id=forge.app_id, private_key=forge.app_pem)
        async with running_reporter(store, forge, token=None, app=app):
            for sequence, state in enumerate(("waiting", "running", "timed_out"), start=1):
                await store.keep([reportable_status(state, sequence=sequence, source="github")], 0.0)
                await nothing_is_pending(store)
        (check,) = forge.checks.values()
        assert check["status"] == "completed"
        assert check["conclusion"] == "timed_out"
        assert check["external_id"] == run_id(1)
        (scope,) = forge.tokens.values()
        assert scope == {"repositories": ["app"], "permissions": {"checks": "write"}}


async def test_a_check_shows_failed_tests_on_lines_and_is_shown_without_them_if_need_be(
    store: SqliteStatuses,
) -> None:
    failures = [{"name": "t::bad", "message": "no", "file": "a.py", "line": 7}]
    tests = {"passed": 1, "failed": 1, "errored": 0, "skipped": 0, "failures": failures}
    refused: list[Request] = []

    def refuse_some(request: Request) -> Reply | None:
        if (
            request.path.endswith("check-runs")
            and request.body["external_id"] == run_id(2)
            and "annotations" in request.body["output"]
        ):
            refused.append(request)
            return Reply(status=422, document={"message": "Invalid request"})
        return None

    async with forge_api(Source.GITHUB) as forge:
        forge.behave(refuse_some)
        app = AppCredentials(id=forge.app_id, private_key=forge.app_pem)
        async with running_reporter(store, forge, token=None, app=app):
            for run in (1, 2):
                await store.keep([reportable_status("failed", run=run, source="github", tests=tests)], 0.0)
                await nothing_is_pending(store)
        first, second = forge.checks.values()
        (annotation,) = first["output"]["annotations"]
        assert (annotation["path"], annotation["start_line"], annotation["title"]) == ("a.py", 7, "t::bad")
        assert "annotations" not in second["output"]
        assert (second["conclusion"], len(refused)) == ("failure", 1)


async def test_a_new_run_has_a_check_run_of_its_own(store: SqliteStatuses) -> None:
    async with forge_api(Source.GITHUB) as forge:
        app = AppCredentials(id=forge.app_id, private_key=forge.app_pem)
        async with running_reporter(store, forge, token=None, app=app):
            for run in (1, 2):
                await store.keep([reportable_status("failed", run=run, source="github")], 0.0)
                await nothing_is_pending(store)
        assert [check["external_id"] for check in forge.checks.values()] == [run_id(1), run_id(2)]


async def test_an_app_without_the_right_to_checks_sets_statuses(store: SqliteStatuses) -> None:
    def granted(request: Request) -> Reply | None:
        if request.path.endswith("/access_tokens") and "checks" in request.body["permissions"]:
            return Reply(status=422, document={"message": "The permissions requested are not granted"})
        return None

    async with forge_api(Source.GITHUB) as forge:
        forge.behave(granted)
        app = AppCredentials(id=forge.app_id, private_key=forge.app_pem)
        async with running_reporter(store, forge, token=None, app=app):
            await store.keep([reportable_status("succeeded", source="github")], 0.0)
            await nothing_is_pending(store)
        assert forge.checks == {}
        assert forge.shown[KEY]["state"] == "success"


async def test_a_token_of_an_app_is_used_until_it_is_about_to_run_out(store: SqliteStatuses) -> None:
    async with forge_api(Source.GITHUB) as forge:
        app = AppCredentials(id=forge.app_id, private_key=forge.app_pem)
        async with running_reporter(store, forge, token=None, app=app):
            for sequence in (1, 2):
                await store.keep([reportable_status("running", sequence=sequence, source="github")], 0.0)
                await nothing_is_pending(store)
            assert len(forge.tokens) == 1
        forge.token_seconds = 60.0
        async with running_reporter(store, forge, token=None, app=app):
            for sequence in (3, 4):
                await store.keep([reportable_status("running", sequence=sequence, source="github")], 0.0)
                await nothing_is_pending(store)
            assert len(forge.tokens) == 3


async def test_a_revoked_token_of_an_app_is_replaced(store: SqliteStatuses) -> None:
    async with forge_api(Source.GITHUB) as forge:
        app = AppCredentials(id=forge.app_id, private_key=forge.app_pem)
        async with running_reporter(store, forge, token=None, app=app):
            await store.keep([reportable_status("running", sequence=1, source="github")], 0.0)
            await nothing_is_pending(store)
            forge.behave(
                lambda request: (
                    Reply(status=401) if request.token in forge.tokens and len(forge.tokens) == 1 else None
                )
            )
            await store.keep([reportable_status("succeeded", sequence=2, source="github")], 0.0)
            await nothing_is_pending(store)
        assert len(forge.tokens) == 2
        assert forge.shown[KEY]["conclusion"] == "success"


async def test_descriptions_fit_what_github_takes(store: SqliteStatuses) -> None:
    async with forge_api(Source.GITHUB) as forge, running_reporter(store, forge):
        status = job_status(
            "failed", source="github", description="A lantern \U0001f3ee fell " + "far " * 100
        )
        await store.keep([reportable_status("failed", source="github", description=status.description)], 0.0)
        await nothing_is_pending(store)
        assert len(forge.shown[KEY]["description"]) <= 140
        assert (await store.shown(status.request_id))[0].phase is ReportPhase.REPORTED


async def test_a_mistake_of_ours_over_one_status_stops_no_other(store: SqliteStatuses) -> None:
    async with forge_api(Source.FORGEJO) as forge, running_reporter(store, forge):
        broken = msgspec.structs.replace(reportable_status("failed", commit_sha="b" * 40), body=b"no status")
        await store.keep([broken, reportable_status("failed")], 0.0)
        await nothing_is_pending(store)
        assert states(forge) == ["failure"]
        async with open_broker(f"sqlite:///{forge_broker(store)}", name="test") as broker:
            (dead_letter,) = await waited_for(lambda: drain(broker, STATUSES.dlq, 1))
        assert dead_letter.headers["x-solstice-reason"] == "internal_error"


async def test_mistake_beside_the_statuses_stops_none(
    store: SqliteStatuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise LookupError("a mistake")

    for work in ("pending", "purge"):
        monkeypatch.setattr(store, work, broken)
    with capture_logs() as logs:
        async with forge_api(Source.FORGEJO) as forge, running_reporter(store, forge):
            await wait_until(lambda: [each["detail"] for each in logs] == ["a mistake", "a mistake"])
            await store.keep([reportable_status("succeeded")], 0.0)
            await wait_until(lambda: states(forge) == ["success"])
    assert [each["event"] for each in logs[:2]] == ["statuses.paused", "statuses.paused"]


@pytest.mark.parametrize(
    ("origin", "window"),
    [
        (Source.GITHUB, Window(calls=20, seconds=2)),
        (Source.GITLAB, Window(calls=20, seconds=2, status=429, prefix="ratelimit")),
        (Source.FORGEJO, Window(calls=20, seconds=2, status=429)),
    ],
)
async def test_no_limit_of_a_forge_is_broken(store: SqliteStatuses, origin: Source, window: Window) -> None:
    async with forge_api(origin) as forge, running_reporter(store, forge):
        forge.window = window
        contexts = [
            reportable_status("failed", source=origin.value, context=f"solstice/{n}") for n in range(30)
        ]
        await store.keep(contexts, 0.0)
        await nothing_is_pending(store)
        assert len(forge.shown) == 30
        assert forge.broken == 0
        assert len(forge.calls) >= 30


async def test_a_forge_that_says_when_is_left_alone_until_then(store: SqliteStatuses) -> None:
    async with forge_api(Source.GITHUB) as forge, running_reporter(store, forge):
        await store.keep([reportable_status("running", sequence=1, source="github")], 0.0)
        await nothing_is_pending(store)
        forge.next(
            Reply(status=403, document={"message": "secondary rate limit"}, headers={"retry-after": "2"})
        )
        contexts = [reportable_status("failed", source="github", context=f"solstice/{n}") for n in range(3)]
        await store.keep(contexts[:1], 0.0)
        await wait_until(lambda: len(forge.calls) == 2)
        await store.keep(contexts, 0.0)
        await nothing_is_pending(store)
        limited, *after = forge.calls[1:]
        assert len(after) >= 3
        assert all(request.at - limited[0].at >= 2.0 for request, _ in after)


async def test_while_one_process_reports_another_stands_by(tmp_path: Path) -> None:
    async with (
        forge_api(Source.FORGEJO) as forge,
        SqliteStatuses.open(tmp_path / "statuses.db") as one,
        SqliteStatuses.open(tmp_path / "statuses.db") as other,
        running_reporter(one, forge) as active,
    ):
        await wait_until(lambda: active.is_leader)
        standby = asyncio.create_task(report_until_killed(other, forge))
        await one.keep([reportable_status("failed")], 0.0)
        await nothing_is_pending(one)
        standby.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await standby
        assert states(forge) == ["failure"]
