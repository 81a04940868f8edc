"""An attempt from claim to stored end: log, outcome, and every interruption."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_common.values.references import References
from solstice_orchestrator.domain.container_spec import ContainerSpec, ServiceSpec
from solstice_orchestrator.domain.jobs import JobSpec, Outcome, Reason, StepSpec
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.reports.values import (
    RAW_MESSAGE,
    JobReport,
    TestCaseResult,
    TestState,
    encode_report,
)
from solstice_orchestrator.store.protocol import AttemptKey, Claim, JobStore, LastChunks
from solstice_orchestrator.store.views import ChunkKind, LogChunk
from solstice_orchestrator.worker import execution, log_buffer
from solstice_orchestrator.worker.execution import HANDED_BACK, execute
from solstice_orchestrator.worker.executors.protocol import Execution, LogWriter
from solstice_orchestrator.worker.executors.scripted import ScriptedExecutor
from solstice_orchestrator.worker.log_buffer import (
    DEFAULT_RETRY_LIMIT,
    FLUSH_BYTES,
    LAST_BYTES,
    StoreRetryLimit,
)
from solstice_orchestrator.worker.masking import Masking
from solstice_orchestrator.worker.secret_rules import SecretRule, SecretRules
from tests.builders import job, job_request
from tests.polling import wait_until

KEY = AttemptKey(job_id="0b6f7a52-3c1f-4f6e-9b1e-2f3a4b5c6d7e", number=2)
DOWN = StoreUnavailable("test", "it is down")


@dataclass
class RecordingStore:
    """The methods of a store that an execution uses, with what went through them."""

    chunks: list[LogChunk] = field(default_factory=list)
    services: dict[str, bytes] = field(default_factory=dict)
    provisioned: list[bool] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    appended: int = 0
    """Bytes of logs that were stored before the end."""
    failures: int = 0
    """How many of the next calls fail."""
    lost_lease: bool = False
    calls: int = 0
    """The number of calls, answered or not."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: the store answers."""

    def __post_init__(self) -> None:
        self.gate.set()

    async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk], service: str = "") -> bool:
        await self._answer(key)
        if not self.lost_lease:
            self.appended += sum(len(chunk.data) for chunk in chunks)
            self._store(chunks, service)
        return not self.lost_lease

    def _store(self, chunks: Sequence[LogChunk], service: str) -> None:
        if service:
            self.services[service] = self.services.get(service, b"") + b"".join(each.data for each in chunks)
        else:
            known = {chunk.sequence for chunk in self.chunks}
            self.chunks.extend(chunk for chunk in chunks if chunk.sequence not in known)

    async def provisioning(self, key: AttemptKey, seconds: float, *, done: bool) -> bool:
        await self._answer(key)
        assert seconds > 0
        self.provisioned.append(done)
        return not self.lost_lease

    async def finish(self, key: AttemptKey, outcome: Outcome, logs: Sequence[LastChunks] = ()) -> bool:
        await self._answer(key)
        if not self.lost_lease:
            for log in logs:
                self._store(log.chunks, log.service)
            self.outcomes.append(outcome)
        return not self.lost_lease

    async def _answer(self, key: AttemptKey) -> None:
        assert key == KEY
        self.calls += 1
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise DOWN

    @property
    def text(self) -> bytes:
        assert [chunk.sequence for chunk in self.chunks] == list(range(1, len(self.chunks) + 1))
        return b"".join(chunk.data for chunk in self.chunks)


@dataclass
class CallingExecutor:
    """An executor that calls a function of the test."""

    body: Callable[[LogWriter, asyncio.Event], Awaitable[Outcome]]
    isolates: bool = True
    ended: list[str] = field(default_factory=list)

    async def run(self, _execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
        try:
            return await self.body(log, stop)
        except asyncio.CancelledError:
            self.ended.append("killed")
            raise


def claim(spec: JobSpec) -> Claim:
    return Claim(
        key=KEY,
        run_id="7d1b0a52-3c1f-4f6e-9b1e-2f3a4b5c6d7e",
        spec=spec,
        body=job_request().encode(),
        lease_until=0.0,
        waiting_since=0.0,
    )


def running(
    store: RecordingStore,
    *runs: str,
    stop: asyncio.Event | None = None,
    executor: CallingExecutor | ScriptedExecutor | None = None,
    notice: asyncio.Future[str] | None = None,
    secret_rules: SecretRules | None = None,
    retry_limit: StoreRetryLimit = DEFAULT_RETRY_LIMIT,
    **changes: Any,
) -> Coroutine[Any, Any, None]:
    return execute(
        claim(job(*runs or ("say hello",), **changes)),
        store=cast("JobStore", store),
        executor=executor or ScriptedExecutor(),
        stop=stop or asyncio.Event(),
        clock=lambda: 12.5,
        notice=notice,
        secret_rules=secret_rules,
        retry_limit=retry_limit,
    )


SUCCESS = Outcome(state=JobState.SUCCEEDED, reason=Reason.COMPLETED, exit_code=0)


async def test_log_and_outcome_are_stored() -> None:
    store = RecordingStore()
    await running(store, "say hello", "exit 3")
    assert store.text == b"$ step 1\nhello\n$ step 2\n"
    assert {chunk.at for chunk in store.chunks} == {12.5}
    (outcome,) = store.outcomes
    assert (outcome.state, outcome.reason, outcome.exit_code, outcome.step) == (
        JobState.FAILED,
        Reason.STEP_FAILED,
        3,
        "step 2",
    )


async def test_what_a_short_job_writes_is_stored_with_its_end() -> None:
    store = RecordingStore()
    await running(store, "say hello", "exit 3")
    assert store.text == b"$ step 1\nhello\n$ step 2\n"
    assert (store.appended, store.calls) == (0, 1)


@pytest.mark.parametrize(("written", "appended"), [(LAST_BYTES, 0), (LAST_BYTES + 1, LAST_BYTES + 1)])
async def test_the_end_carries_a_little_of_the_log_at_most(written: int, appended: int) -> None:
    store = RecordingStore()
    store.gate.clear()

    async def writes(log: LogWriter, _stop: asyncio.Event) -> Outcome:
        await log(b"x" * FLUSH_BYTES)
        await wait_until(lambda: store.calls == 1)
        await log(b"y" * written)
        # The store answers once the job has ended.
        asyncio.get_running_loop().call_later(0.05, store.gate.set)
        return SUCCESS

    await running(store, executor=CallingExecutor(writes))
    assert store.text == b"x" * FLUSH_BYTES + b"y" * written
    assert (store.appended, store.outcomes) == (FLUSH_BYTES + appended, [SUCCESS])


async def test_a_mistake_while_the_rest_of_the_log_is_sent_leaves_the_task_whole() -> None:
    """Later steps, such as storing the failure, may have time limits of their own."""

    class BreakingStore(RecordingStore):
        async def append_log(self, key: AttemptKey, chunks: Sequence[LogChunk], service: str = "") -> bool:
            raise KeyError("a bug")

    with pytest.raises(ExceptionGroup):
        await running(BreakingStore(), "repeat 20000 a line of the log")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


SECRETS = SecretRules(
    references=References(folder=Path("/nowhere"), environ={}),
    rules=(
        SecretRule(
            repositories=("forge.example/**",),
            references={"TOKEN": "plain:heron-otter-7731", "LOST": "file:lost"},
        ),
    ),
)


async def test_secret_is_given_to_the_executor_and_masked_in_what_it_writes() -> None:
    given: list[str] = []

    @dataclass
    class Printing:
        isolates: bool = True

        async def run(self, execution: Execution, log: LogWriter, _stop: asyncio.Event) -> Outcome:
            given.append(execution.secrets["TOKEN"])
            assert "heron" not in repr(execution)
            for byte in f"it is {given[0]}; her".encode():
                await log(bytes([byte]))
            return replace(SUCCESS, detail=f"printed {given[0]}")

    store = RecordingStore()
    await running(
        store, executor=cast("CallingExecutor", Printing()), secret_rules=SECRETS, secrets=("TOKEN",)
    )
    assert given == ["heron-otter-7731"]
    assert store.text == b"it is ***; her"
    assert store.outcomes == [replace(SUCCESS, detail="printed ***")]


async def test_secrets_are_masked_in_test_reports_also_where_a_text_was_cut() -> None:
    secret = "heron-otter-7731"
    whole = TestCaseResult(
        name=f"n {secret}",
        class_name=f"c {secret}",
        suite=f"s {secret}",
        state=TestState.FAILED,
        message="x" * (RAW_MESSAGE - 5) + secret[:5],
        file=f"{secret}.py",
    )
    given = JobReport(failed=(whole,), flaky=(whole,), slowest=(whole,), problems=(f"p {secret}",))
    masked: list[JobReport] = []

    @dataclass
    class Reporting:
        isolates: bool = True

        async def run(self, execution: Execution, _log: LogWriter, _stop: asyncio.Event) -> Outcome:
            masked.append(execution.masked_report(given))
            return SUCCESS

    executor = cast("CallingExecutor", Reporting())
    await running(RecordingStore(), executor=executor, secret_rules=SECRETS, secrets=("TOKEN",))
    (report,) = masked
    assert b"heron" not in encode_report(report)
    (failed,) = report.failed
    assert (failed.name, failed.file, failed.message) == ("n ***", "***.py", "x" * (RAW_MESSAGE - 5))
    assert report.problems == ("p ***",)


@pytest.mark.parametrize(
    "text",
    [
        "it is heron-otter-7731",
        "heron-otter-7731",
        "aGVyb24tb3R0ZXItNzczMQ==",
        "6865726f6e2d6f747465722d37373331",
    ],
)
async def test_an_output_with_a_secret_is_not_stored(text: str) -> None:
    async def body(_log: LogWriter, _stop: asyncio.Event) -> Outcome:
        return replace(SUCCESS, outputs=(("plain", "heron"), ("token", text)))

    store = RecordingStore()
    await running(store, executor=CallingExecutor(body), secret_rules=SECRETS, secrets=("TOKEN",))
    (outcome,) = store.outcomes
    assert (outcome.state, outcome.reason, outcome.outputs) == (
        JobState.FAILED,
        Reason.OUTPUT_REFUSED,
        (),
    )
    assert outcome.detail.startswith("outputs: token has a secret in it")
    assert b"! outputs: token has a secret in it" in store.text
    assert text.encode() not in store.text


async def test_what_services_write_is_masked_and_stored_by_their_names() -> None:
    @dataclass
    class WithServices:
        isolates: bool = True

        async def run(self, execution: Execution, log: LogWriter, _stop: asyncio.Event) -> Outcome:
            secret = execution.secrets["TOKEN"].encode()
            # The pieces of one log come between those of the others.
            await execution.service_log("db", b"<" + secret[:4])
            await execution.service_log("cache", b"other words")
            await log(secret[:6])
            await execution.service_log("db", secret[4:])
            await log(secret[6:])
            await execution.service_log("db", LogMark.of("! cut"))
            return SUCCESS

    services = tuple(ServiceSpec(name=name, image="x") for name in ("db", "cache"))
    store = RecordingStore()
    await running(
        store,
        executor=cast("CallingExecutor", WithServices()),
        secret_rules=SECRETS,
        secrets=("TOKEN",),
        container=ContainerSpec(services=services),
    )
    assert store.text == b"***"
    assert store.services == {"db": b"<***\n! cut\n", "cache": b"other words"}


async def test_other_work_goes_on_while_a_secret_of_many_lines_is_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, lines = asyncio.get_running_loop(), [f"line-{number:05}-of-the-key" for number in range(50)]
    waits: list[bool] = []

    def wait_for_loop() -> None:
        went_on = threading.Event()
        loop.call_soon_threadsafe(went_on.set)
        waits.append(went_on.wait(5))

    class WaitingMasking(Masking):
        def __init__(self, secrets: Iterable[str]) -> None:
            wait_for_loop()
            super().__init__(secrets)

        def feed(self, data: bytes) -> bytes:
            wait_for_loop()
            return super().feed(data)

    async def prints(log: LogWriter, _stop: asyncio.Event) -> Outcome:
        await log(f"first {lines[7]} se".encode())
        await log(f"cond {lines[8]}".encode())
        return SUCCESS

    monkeypatch.setattr(execution, "Masking", WaitingMasking)
    store = RecordingStore()
    rule = SecretRule(repositories=("forge.example/**",), references={"KEY": "plain:" + "\n".join(lines)})
    await running(
        store,
        executor=CallingExecutor(prints),
        secret_rules=replace(SECRETS, rules=(rule,)),
        secrets=("KEY",),
    )
    assert waits == [True, True, True]
    assert store.text == b"first *** second ***"


@pytest.mark.parametrize(
    ("name", "rules", "reported"),
    [
        ("OTHER", SECRETS, "there is no secret OTHER for forge.example/lantern/harbour"),
        ("LOST", SECRETS, "the secret LOST cannot be used on this worker"),
        ("TOKEN", None, "there are no secrets here"),
    ],
    ids=["of no rule", "unreadable", "no rules"],
)
async def test_job_that_is_not_given_a_secret_fails_unrun(
    name: str, rules: SecretRules | None, reported: str
) -> None:
    async def never(_log: LogWriter, _stop: asyncio.Event) -> Outcome:
        raise AssertionError

    store = RecordingStore()
    step = StepSpec(name="upload", run="true", secrets=(name,))
    await execute(
        claim(job(step)),
        store=cast("JobStore", store),
        executor=CallingExecutor(never),
        stop=asyncio.Event(),
        secret_rules=rules,
    )
    (outcome,) = store.outcomes
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.SECRET_MISSING)
    assert outcome.detail.startswith(reported)
    assert outcome.detail.encode() in store.text


async def test_the_whole_log_is_stored_before_the_outcome() -> None:
    store = RecordingStore(failures=2)
    await running(store, "repeat 20000 a line of the log")
    assert store.text.count(b"\n") == 20001
    assert len(store.outcomes) == 1


async def test_output_reaches_the_store_while_the_job_runs() -> None:
    store, stop = RecordingStore(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(running(store, "say early\nhang", stop=stop))
        await wait_until(lambda: b"early" in store.text)
        assert not store.outcomes
        stop.set()
    assert store.outcomes[0].reason is Reason.CANCEL_REQUESTED


async def test_output_of_one_moment_travels_together() -> None:
    store = RecordingStore()
    await running(store, "\n".join(f"say {number}" for number in range(50)))
    assert [each.kind for each in store.chunks] == [ChunkKind.MARK, ChunkKind.OUTPUT]


async def test_marks_are_chunks_of_their_own_and_nothing_printed_is_one() -> None:
    store = RecordingStore()
    await running(store, "say $ step 2\nsay ! cancelled", "say two")
    assert [(each.kind, each.data) for each in store.chunks] == [
        (ChunkKind.MARK, b"$ step 1\n"),
        (ChunkKind.OUTPUT, b"$ step 2\n! cancelled\n"),
        (ChunkKind.MARK, b"$ step 2\n"),
        (ChunkKind.OUTPUT, b"two\n"),
    ]


async def test_no_chunk_is_larger_than_64_kib() -> None:
    async def flood(log: LogWriter, _stop: asyncio.Event) -> Outcome:
        await log(bytes(300_000))
        return SUCCESS

    store = RecordingStore()
    await running(store, executor=CallingExecutor(flood))
    assert max(len(chunk.data) for chunk in store.chunks) == 64 * 1024
    assert len(store.text) == 300_000


async def test_a_slow_store_slows_the_job_down() -> None:
    written = 0

    async def flood(log: LogWriter, _stop: asyncio.Event) -> Outcome:
        nonlocal written
        for _ in range(100):
            await log(bytes(100_000))
            written += 100_000
        return SUCCESS

    store = RecordingStore()
    store.gate.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(running(store, executor=CallingExecutor(flood)))
        await wait_until(lambda: written >= log_buffer.PENDING_BYTES)
        for _ in range(100):
            await asyncio.sleep(0)
        assert written <= 2 * log_buffer.PENDING_BYTES + 200_000
        store.gate.set()
    assert len(store.text) == 10_000_000


async def test_a_store_that_was_away_gets_everything_later() -> None:
    store = RecordingStore(failures=4)
    await running(store, "say hello")
    assert store.text == b"$ step 1\nhello\n"
    assert store.outcomes == [SUCCESS]


async def test_a_store_that_stays_away_for_a_lease_ends_the_execution() -> None:
    store, executor = RecordingStore(failures=1000), CallingExecutor(lambda log, _: _talk_and_hang(log))
    await running(
        store, executor=executor, retry_limit=StoreRetryLimit(seconds=600.0, monotonic=slow_clock())
    )
    assert executor.ended == ["killed"]
    assert not store.outcomes
    assert store.calls == 4  # the last time when the lease was over


async def test_a_store_that_is_away_for_less_than_a_lease_gets_the_end_later() -> None:
    store, retry_limit = RecordingStore(failures=2), StoreRetryLimit(seconds=600.0, monotonic=slow_clock())
    await running(store, "say hello", retry_limit=retry_limit)
    assert store.text == b"$ step 1\nhello\n"
    store = RecordingStore(failures=2)
    await running(
        store,
        executor=CallingExecutor(lambda _log, _stop: asyncio.sleep(0, SUCCESS)),
        retry_limit=retry_limit,
    )
    assert store.outcomes == [SUCCESS]


async def test_a_holder_that_was_frozen_while_it_recorded_an_end_asks_once_more() -> None:
    """The failed call began before the freeze, and proves nothing about the store since."""
    leapt = iter([0.0, *[3600.0] * 9])
    store = RecordingStore(failures=1)
    await running(
        store,
        executor=CallingExecutor(lambda _log, _stop: asyncio.sleep(0, SUCCESS)),
        retry_limit=StoreRetryLimit(seconds=60.0, monotonic=lambda: next(leapt)),
    )
    assert store.outcomes == [SUCCESS]


def slow_clock() -> Callable[[], float]:
    """A clock that is four minutes further at every call."""
    calls = itertools.count()
    return lambda: next(calls) * 240.0


async def test_a_lost_lease_kills_the_job_and_writes_nothing() -> None:
    store, executor = RecordingStore(lost_lease=True), CallingExecutor(lambda log, _: _talk_and_hang(log))
    await running(store, executor=executor)
    assert executor.ended == ["killed"]
    assert (store.chunks, store.outcomes) == ([], [])


def ends_logged(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """The log events that say how an attempt ended."""
    ends = {LogEvent.ATTEMPT_FINISHED, LogEvent.ATTEMPT_HANDED_BACK, LogEvent.ATTEMPT_LOST}
    return [event["event"] for event in events if event["event"] in ends]


async def test_a_cancelled_execution_kills_the_job_and_releases_it() -> None:
    store, executor = RecordingStore(), CallingExecutor(lambda log, _: _talk_and_hang(log))
    task = asyncio.ensure_future(running(store, executor=executor))
    await wait_until(lambda: store.chunks)
    with capture_logs() as events:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert executor.ended == ["killed"]
    assert ends_logged(events) == [LogEvent.ATTEMPT_HANDED_BACK]
    assert [(outcome.state, outcome.reason) for outcome in store.outcomes] == [
        (JobState.WAITING, Reason.RELEASED)
    ]


async def test_a_store_that_does_not_answer_keeps_no_cancelled_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "CANCELLED_SECONDS", 0.05)
    monkeypatch.setattr(execution, "LOG", structlog.get_logger())
    store, executor = RecordingStore(), CallingExecutor(lambda log, _: _talk_and_hang(log))
    task = asyncio.ensure_future(running(store, executor=executor))
    await wait_until(lambda: store.chunks)
    store.gate.clear()
    with capture_logs() as events:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert executor.ended == ["killed"]
    assert [event["event"] for event in events] == [LogEvent.ATTEMPT_UNRECORDED]


async def test_output_not_yet_sent_is_kept_when_the_job_is_released() -> None:
    written = asyncio.Event()

    async def talk(log: LogWriter, _stop: asyncio.Event) -> Outcome:
        await log(b"talk\n")
        written.set()
        await asyncio.Event().wait()
        return SUCCESS

    store = RecordingStore()
    task = asyncio.ensure_future(running(store, executor=CallingExecutor(talk)))
    await written.wait()
    assert not store.chunks
    task.cancel()
    await asyncio.wait([task])
    assert store.text == f"talk\n! {HANDED_BACK}\n".encode()


@pytest.mark.parametrize(
    ("first_line", "logged"),
    [(b"talk\n", b"talk\n! we are leaving\n"), (b"talk", b"talk\n! we are leaving\n")],
    ids=["whole line", "open line"],
)
async def test_a_notice_is_logged_as_a_line_of_its_own(first_line: bytes, logged: bytes) -> None:
    notice, end = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def talk(log: LogWriter, _stop: asyncio.Event) -> Outcome:
        await log(first_line)
        await end.wait()
        await log(b"the end\n")
        return SUCCESS

    store = RecordingStore()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(running(store, executor=CallingExecutor(talk), notice=notice))
        await wait_until(lambda: store.chunks)
        notice.set_result("we are leaving")
        await wait_until(lambda: store.text == logged)
        end.set()
    assert store.text == logged + b"the end\n"
    assert store.outcomes == [SUCCESS]


async def test_without_a_notice_a_job_ends_as_usual() -> None:
    store = RecordingStore()
    await running(store, "say hello", notice=asyncio.get_running_loop().create_future())
    assert store.text == b"$ step 1\nhello\n"
    assert store.outcomes == [SUCCESS]


async def test_a_job_that_had_ended_is_never_released() -> None:
    async def quick(log: LogWriter, _stop: asyncio.Event) -> Outcome:
        await log(b"done\n")
        return SUCCESS

    store = RecordingStore()
    store.gate.clear()
    task = asyncio.ensure_future(running(store, executor=CallingExecutor(quick)))
    await wait_until(lambda: store.calls == 1)
    with capture_logs() as events:
        task.cancel()
        await wait_until(lambda: store.calls == 2)
        store.gate.set()
        await asyncio.wait([task])
    assert task.cancelled()
    assert ends_logged(events) == [LogEvent.ATTEMPT_FINISHED]
    assert store.text == b"done\n"
    assert store.outcomes == [SUCCESS]


async def test_an_executor_that_breaks_is_an_infrastructure_failure() -> None:
    store = RecordingStore()
    await running(store, "crash the glass is broken")
    (outcome,) = store.outcomes
    assert outcome.reason is Reason.EXECUTOR_FAILED
    assert "the glass is broken" in outcome.detail


async def test_stop_ends_the_job_as_cancelled() -> None:
    store, stop = RecordingStore(), asyncio.Event()
    stop.set()
    await running(store, "hang", stop=stop)
    assert store.outcomes[0].state is JobState.CANCELLED


async def _talk_and_hang(log: LogWriter) -> Outcome:
    await log(b"talk\n")
    await asyncio.Event().wait()
    return SUCCESS


@pytest.mark.parametrize(("seconds", "recorded"), [(0.0, []), (0.3, [False, True])])
async def test_preparations_are_recorded_while_they_last_unless_they_are_short(
    monkeypatch: pytest.MonkeyPatch, seconds: float, recorded: list[bool]
) -> None:
    class PreparingExecutor(ScriptedExecutor):
        async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
            execution.provisioning.begin()
            await asyncio.sleep(seconds)
            execution.provisioning.end()
            await asyncio.sleep(0.05)
            return await super().run(execution, log, stop)

    monkeypatch.setattr(execution, "PROVISIONING_SHOWN_SECONDS", 0.1)
    store = RecordingStore()
    await running(store, "say hello", executor=PreparingExecutor())
    assert store.provisioned == recorded
    assert store.outcomes[0].state is JobState.SUCCEEDED


async def test_an_end_amid_preparations_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class GivingUpExecutor(ScriptedExecutor):
        async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
            execution.provisioning.begin()
            await asyncio.sleep(0.1)
            return Outcome(state=JobState.ERRORED, reason=Reason.PROVISION_FAILED)

    monkeypatch.setattr(execution, "PROVISIONING_SHOWN_SECONDS", 0.01)
    store = RecordingStore()
    await running(store, "say hello", executor=GivingUpExecutor())
    assert store.provisioned == [False]
    assert store.outcomes[0].reason is Reason.PROVISION_FAILED
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("provisioning")]
