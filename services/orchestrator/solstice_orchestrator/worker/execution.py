"""Run one claimed attempt, and store its log and its outcome."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from solstice_common.errors import StoreUnavailable
from solstice_common.messages.states import JobState
from solstice_common.tracing.run_trace import attempt_traceparent
from solstice_common.tracing.samplers import Sampler
from solstice_orchestrator.domain.jobs import Outcome, Reason, named_secrets
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.processes.completion import run_to_completion
from solstice_orchestrator.reports.reduction import masked_report
from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord, NeededJob
from solstice_orchestrator.store.protocol import AttemptKey, Claim, JobStore, LastChunks
from solstice_orchestrator.store.records.report_records import ReportRecord
from solstice_orchestrator.worker.executors.protocol import Execution, Executor, LogWriter, Provisioning
from solstice_orchestrator.worker.log_buffer import (
    DEFAULT_RETRY_LIMIT,
    LogBuffer,
    StoreRetryLimit,
    retry_while_unavailable,
)
from solstice_orchestrator.worker.masking import Masking
from solstice_orchestrator.worker.secret_rules import GivenSecrets, SecretRules, WithheldSecrets

LOG = structlog.get_logger(__name__)

CANCELLED_SECONDS: Final = 10.0
"""How long a cancelled execution tries to hand its job back. Later its lease runs out."""

PROVISIONING_SHOWN_SECONDS: Final = 1.0
"""Shorter preparations are recorded at the end of the attempt alone, with its outcome."""

HANDED_BACK: Final = "this worker gave the job back; it starts over as soon as another worker has a free slot"

RELEASED: Final = Outcome(
    state=JobState.WAITING, reason=Reason.RELEASED, detail="the orchestrator that ran it shut down"
)


async def execute(
    claim: Claim,
    *,
    store: JobStore,
    executor: Executor,
    stop: asyncio.Event,
    clock: Callable[[], float] = time.time,
    rng: random.Random | None = None,
    notice: asyncio.Future[str] | None = None,
    secret_rules: SecretRules | None = None,
    sampler: Sampler | None = None,
    retry_limit: StoreRetryLimit = DEFAULT_RETRY_LIMIT,
) -> None:
    """Run the attempt with its secrets, store its masked log, and record its outcome.

    `sampler` says whether it is traced. Once `notice` has a result, it is written to the log; a draining worker uses
    this. Set `stop` when the job
    is cancelled: it ends as the executor promises. Cancel the task when the attempt's lease is lost or the
    grace of a shutdown is over: the processes are killed and the job is released, unless it had ended
    already, in which case that end is recorded. Raises nothing but CancelledError. A lost attempt, and a
    store that is unavailable for longer than `retry_limit`, the length of a lease, end the execution with a
    log event, and rescue takes the attempt back.
    """
    rng = rng or random.Random()  # noqa: S311  jitter is no secret
    log = LogBuffer(claim.key, store, clock, rng, retry_limit)
    services = {
        each.name: LogBuffer(claim.key, store, clock, rng, retry_limit, service=each.name)
        for each in claim.spec.container.services
    }
    logs = (log, *services.values())
    bound = LOG.bind(job_id=claim.key.job_id, attempt=claim.key.number, run_id=claim.run_id)
    bound.info(LogEvent.ATTEMPT_STARTED, job=claim.spec.name, runs_on=claim.spec.runs_on)

    async def record_artifact(artifact: ArtifactRecord, most_bytes: int) -> ArtifactAnswer:
        return await retry_while_unavailable(
            lambda: store.record_artifact(claim.key, artifact, most_bytes), rng, retry_limit
        )

    async def needed_jobs(names: Collection[str]) -> Mapping[str, NeededJob]:
        return await retry_while_unavailable(lambda: store.needed_jobs(claim.run_id, names), rng, retry_limit)

    async def record_report(record: ReportRecord) -> bool:
        return await retry_while_unavailable(
            lambda: store.record_report(claim.key.job_id, claim.key.number, record), rng, retry_limit
        )

    label = f"{claim.spec.name} #{claim.key.number}"
    provisioning = Provisioning(
        on_begun=lambda: preparing.append(
            asyncio.create_task(
                _record_provisioning(provisioning, claim.key, store), name=f"provisioning {label}"
            )
        )
    )
    preparing = list[asyncio.Task[None]]()
    execution = Execution(
        job_id=claim.key.job_id,
        attempt=claim.key.number,
        spec=claim.spec,
        request=claim.request,
        service_log=lambda service, data: services[service].write(data),
        traceparent=None
        if sampler is None
        else attempt_traceparent(claim.request, claim.key.job_id, claim.key.number, sampler),
        image_found=partial(_record_image, store, claim.key),
        record_artifact=record_artifact,
        needed_jobs=needed_jobs,
        record_report=record_report,
        provisioning=provisioning,
    )
    running = asyncio.create_task(
        _with_secrets(executor, execution, log, stop, secret_rules), name=f"run {label}"
    )
    for each in logs:
        running.add_done_callback(partial(_close, each))
    try:
        async with asyncio.TaskGroup() as tasks:
            sending = [
                tasks.create_task(each.send(lost=running.cancel), name=f"log {label}") for each in logs
            ]
            if notice is not None:
                either: list[asyncio.Future[Any]] = [running, notice]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    log.remark(notice.result())
            # Both in the group's body: a failure after it would leave this task half cancelled before Python 3.11.3.
            await asyncio.wait([running, *sending])
        lost = next((each.lost for each in logs if each.lost), "")
        if lost or running.cancelled():
            bound.warning(LogEvent.ATTEMPT_LOST, detail=lost or "stopped")
            return
        retry = partial(retry_while_unavailable, rng=rng, retry_limit=retry_limit)
        await _finish(bound, partial(store.finish, claim.key, logs=_ends_of(logs)), running.result(), retry)
    except asyncio.CancelledError:
        await _end_cancelled(bound, store, claim.key, running, logs)
        raise
    finally:
        for task in (running, *preparing):
            task.cancel()
        await asyncio.wait([running, *preparing])


async def _record_provisioning(provisioning: Provisioning, key: AttemptKey, store: JobStore) -> None:
    """Record for how long a container or VM is prepared, unless that is short."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(provisioning.done.wait(), PROVISIONING_SHOWN_SECONDS)
        return
    # What is shown meanwhile may be lost; the outcome of the attempt has the time in any case.
    with contextlib.suppress(StoreUnavailable):
        await store.provisioning(key, provisioning.seconds or 0.0, done=False)
        await provisioning.done.wait()
        await store.provisioning(key, provisioning.seconds or 0.0, done=True)


async def _record_image(store: JobStore, key: AttemptKey, image: str) -> None:
    # The end of the attempt records it again, so a job need not wait for a store that is away.
    with suppress(StoreUnavailable):
        await store.record_image(key, image)


def _ends_of(logs: Iterable[LogBuffer]) -> Sequence[LastChunks]:
    return [last for each in logs for last in each.last_chunks()]


def _close(log: LogBuffer, _: "asyncio.Task[Outcome]") -> None:
    log.close()


async def _with_secrets(
    executor: Executor,
    execution: Execution,
    log: LogBuffer,
    stop: asyncio.Event,
    rules: SecretRules | None,
) -> Outcome:
    """Run the job with its secrets; fail it unrun when a secret is withheld."""
    names = named_secrets(execution.spec)
    if not names:
        return await _outcome(executor, execution, log.write, stop)
    granted: GivenSecrets | WithheldSecrets = WithheldSecrets(detail="there are no secrets here")
    if rules is not None:
        # In a thread, because it reads files.
        granted = await asyncio.to_thread(rules.give, names, execution.request)
    if isinstance(granted, WithheldSecrets):
        if granted.trouble:
            LOG.warning(
                LogEvent.SECRET_UNUSABLE,
                job_id=execution.job_id,
                attempt=execution.attempt,
                repository=execution.request.repo_url,
                detail=granted.trouble,
            )
        log.remark(granted.detail)
        return Outcome(state=JobState.FAILED, reason=Reason.SECRET_MISSING, detail=granted.detail)
    masking = await asyncio.to_thread(Masking, granted.values.values())

    # A piece of one log may end with the beginning of a secret, so each is masked by itself.
    services = {each.name: copy(masking) for each in execution.spec.container.services}
    writers = {
        name: _masking_writer(each, partial(execution.service_log, name)) for name, each in services.items()
    }
    secret = replace(
        execution,
        secrets=granted.values,
        service_log=lambda service, data: writers[service](data),
        masked_report=partial(
            masked_report, masked=masking.masked, masked_beginning=masking.masked_beginning
        ),
    )
    outcome = await _outcome(executor, secret, _masking_writer(masking, log.write), stop)
    await log.write(masking.end())
    for name, each in services.items():
        await execution.service_log(name, each.end())
    ended = _without_secrets(replace(outcome, detail=masking.masked(outcome.detail)), masking)
    if ended.reason is not outcome.reason:
        log.remark(ended.detail)
    return ended


def _without_secrets(outcome: Outcome, masking: Masking) -> Outcome:
    """Refuse an output with a secret in it, which the store would have then."""
    name = next((name for name, text in outcome.outputs if masking.masked(text) != text), None)
    if name is None:
        return outcome
    return replace(
        outcome,
        state=JobState.FAILED,
        reason=Reason.OUTPUT_REFUSED,
        detail=f"outputs: {name} has a secret in it; let the job that needs it name the secret",
        outputs=(),
    )


def _masking_writer(masking: Masking, write: LogWriter) -> LogWriter:
    """Return what writes masked output to `write`."""

    async def masked(data: bytes) -> None:
        if isinstance(data, LogMark):
            await write(masking.end())
            return await write(LogMark(masking.masked(data.decode()).encode()))
        return await write(await _masked(masking, data))

    return masked


async def _masked(masking: Masking, data: bytes) -> bytes:
    """Mask a piece of output, in a thread if that takes long."""
    if not masking.is_slow:
        return masking.feed(data)
    piece = [data]

    def feed() -> bytes:
        return masking.feed(piece.pop())

    try:
        # To its end: the next call continues where this one ended.
        return await run_to_completion(asyncio.to_thread(feed), "mask output")
    except RuntimeError:
        # No thread could be started. If one makes this call later nevertheless, it finds no piece.
        return feed()


async def _outcome(executor: Executor, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
    """Return the executor's outcome; an exception of the executor is an infrastructure failure."""
    try:
        return await executor.run(execution, log, stop)
    except Exception as error:
        LOG.exception(LogEvent.EXECUTOR_CRASHED, job_id=execution.job_id, attempt=execution.attempt)
        return Outcome(
            state=JobState.ERRORED,
            reason=Reason.EXECUTOR_FAILED,
            detail=f"the executor broke: {type(error).__name__}: {error}"[:1000],
        )


async def _finish(
    bound: structlog.typing.FilteringBoundLogger,
    record: Callable[[Outcome], Awaitable[bool]],
    outcome: Outcome,
    retry: Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]],
) -> None:
    try:
        stored = await retry(lambda: record(outcome))
    except StoreUnavailable as error:
        bound.error(
            LogEvent.ATTEMPT_UNRECORDED, state=outcome.state, reason=outcome.reason, detail=str(error)
        )
    else:
        _log_end(bound, outcome, stored=stored)


def _log_end(bound: structlog.typing.FilteringBoundLogger, outcome: Outcome, *, stored: bool) -> None:
    if stored:
        bound.info(
            LogEvent.ATTEMPT_FINISHED,
            state=outcome.state,
            reason=outcome.reason,
            exit_code=outcome.exit_code,
            step=outcome.step,
            detail=outcome.detail or None,
        )
    else:
        bound.warning(LogEvent.ATTEMPT_LOST, detail="it was no longer ours when it ended")


async def _end_cancelled(
    bound: structlog.typing.FilteringBoundLogger,
    store: JobStore,
    key: AttemptKey,
    running: asyncio.Task[Outcome],
    logs: Sequence[LogBuffer],
) -> None:
    """End a cancelled execution's processes, then record its end within CANCELLED_SECONDS."""
    running.cancel()
    await asyncio.wait([running])
    outcome = RELEASED if running.cancelled() else running.result()
    if outcome is RELEASED:
        logs[0].remark(HANDED_BACK)

    async def finish() -> None:
        if all([await each.send_rest() for each in logs]):
            stored = await store.finish(key, outcome, _ends_of(logs))
            if outcome is RELEASED:
                bound.info(
                    LogEvent.ATTEMPT_HANDED_BACK, state=outcome.state, reason=outcome.reason, stored=stored
                )
            else:
                _log_end(bound, outcome, stored=stored)

    try:
        # Not `asyncio.timeout`, which ends as one more cancellation in a cancelled task before Python 3.11.3
        # (github.com/python/cpython/issues/102780).
        await asyncio.wait_for(finish(), CANCELLED_SECONDS)
    except (TimeoutError, StoreUnavailable) as error:
        bound.warning(
            LogEvent.ATTEMPT_UNRECORDED, state=outcome.state, reason=outcome.reason, detail=str(error)
        )
