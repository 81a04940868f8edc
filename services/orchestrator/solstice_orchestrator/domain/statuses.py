"""The commit status of a transition: its text and canonical bytes (`jobstatus.v1`). Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.json import Decoder, Encoder

from solstice_common.messages import JobRequestV1, JobStatusV1
from solstice_common.messages.states import JobState, RunState
from solstice_common.tracing.run_trace import run_traceparent
from solstice_common.tracing.samplers import Sampler
from solstice_common.values.quantities import quantity
from solstice_common.values.times import format_seconds
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, Outcome, Reason
from solstice_orchestrator.reports.values import StatusTests

RUN_CONTEXT: Final = "solstice"
_NAME_LIMIT: Final = 255
_DESCRIPTION_LIMIT: Final = 1000
_DETAIL_LIMIT: Final = 4000
RESULT_BYTES: Final = 8192
"""Of the outputs in a status, with their names."""

_BY_REASON: Final[Mapping[Reason, str]] = {
    Reason.RELEASED: "Handed back by an orchestrator that shut down; waits for a free slot again",
    Reason.APPROVED: "Approved; waits for a free slot",
    Reason.BACKOFF_OVER: "Waits for a free slot again",
    Reason.NEEDS_FAILED: "Skipped: a job that it needs did not succeed",
    Reason.CONDITION_UNMET: "Not part of this run",
    Reason.EVENT_NOT_BUILT: "Not built for this event",
    Reason.JOB_TIMEOUT: "The job took longer than it may",
    Reason.NO_OUTPUT: "The job wrote nothing for longer than it may",
    Reason.SECRET_MISSING: "A secret that it names is not given to it",
    Reason.CONTAINER_REFUSED: "Its worker does not give it the container that it asks for",
    Reason.IMAGE_UNAVAILABLE: "Its image cannot be had",
    Reason.OUT_OF_MEMORY: "The job needed more memory than it may use",
    Reason.OUT_OF_DISK: "The job needed more disk space than it may use",
    Reason.SERVICE_DIED: "A service of the job ended too early",
    Reason.SERVICE_NOT_READY: "A service of the job was not ready in time",
    Reason.ARTIFACT_REFUSED: "An artifact of the job cannot be kept",
    Reason.ARTIFACT_NOT_STORED: "There was no room for an artifact of the job",
    Reason.ARTIFACT_MISSING: "An artifact that it needs does not exist",
    Reason.ARTIFACT_NOT_PLACED: "An artifact that it needs cannot be placed in its workspace",
    Reason.OUTPUT_REFUSED: "An output of the job, or of jobs that it needs, cannot be used",
    Reason.ARTIFACT_UNAVAILABLE: "The archive of an artifact that it needs cannot be read",
    Reason.REPORT_UNUSABLE: "A test report that the job requires cannot be used",
    Reason.RUN_TIMEOUT: "The run took longer than it may",
    Reason.CANCEL_REQUESTED: "Cancelled",
    Reason.SUPERSEDED: "Cancelled for a newer run",
    Reason.INVALID_WORKFLOW: "The workflow cannot be used",
    Reason.COMMIT_NOT_FOUND: "The commit cannot be found",
    Reason.NOT_TRUSTED: "Not run: this code is not trusted, and does not run here",
    Reason.AGENT_LOST: "The orchestrator that ran it is gone",
    Reason.LEASE_EXPIRED: "The orchestrator that ran it did not renew its lease",
    Reason.PROVISION_FAILED: "The place to run it could not be prepared",
    Reason.CHECKOUT_FAILED: "The commit could not be fetched",
    Reason.EXECUTOR_FAILED: "The executor failed",
    Reason.MACHINE_FAILED: "The machine that was to run it lacks disk, memory, processes or git",
    Reason.HOST_AWAY: "Its git host does not answer now",
    Reason.COMMIT_UNUSABLE: "The commit itself cannot be checked out",
}


class StatusSubject(Struct, frozen=True, kw_only=True, gc=False):
    """The fields of a request that every status about it repeats."""

    request_id: str
    source: str
    repo_url: str
    commit_sha: str
    source_name: str | None = None
    repo_full_name: str | None = None
    ref: str | None = None
    change_number: int | None = None
    delivery_id: str | None = None
    traceparent: str | None = None


read_subject: Final = Decoder(StatusSubject).decode
"""Read a stored request, which was validated at admission; other fields are ignored."""


class Status(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """`jobstatus.v1` with its fields in canonical order.

    The same as `JobStatusV1`, without the cost of a model per message.
    """

    attempt: int | None = None
    change_number: int | None = None
    commit_sha: str
    context: str | None = None
    delivery_id: str | None = None
    description: str | None = None
    exit_code: int | None = None
    job_id: str | None = None
    job_name: str | None = None
    occurred_at: str | None = None
    reason: str | None = None
    ref: str | None = None
    repo_full_name: str | None = None
    repo_url: str
    request_id: str
    result: Mapping[str, object] | None = None
    revision: int | None = None
    run_id: str | None = None
    schema_version: str
    sequence: int | None = None
    source: str
    source_name: str | None = None
    state: str | None = None
    status_id: str | None = None
    target_url: str | None = None
    tests: StatusTests | None = None
    traceparent: str | None = None


def status_about(
    request: StatusSubject | JobRequestV1,
    *,
    run_id: str | None = None,
    occurred_at: str | None = None,
    sampler: Sampler | None = None,
) -> Status:
    """Return the fields that all statuses about a request share, at one moment.

    Where runs are traced (`sampler`), their context is that of the run, else that of the request.
    """
    traceparent = request.traceparent
    if sampler is not None and run_id is not None:
        traceparent = run_traceparent(request, run_id, sampler)
    return Status(
        run_id=run_id,
        occurred_at=occurred_at,
        schema_version=JobStatusV1.VERSION,
        request_id=request.request_id,
        source=request.source,
        repo_url=request.repo_url,
        commit_sha=request.commit_sha,
        source_name=request.source_name,
        repo_full_name=request.repo_full_name,
        ref=request.ref,
        change_number=request.change_number,
        delivery_id=request.delivery_id,
        traceparent=traceparent,
    )


encode_status: Final[Callable[[Status], bytes]] = Encoder().encode
"""The canonical bytes; fields that are None are left out."""


def result_of(outcome: Outcome) -> Mapping[str, object] | None:
    """Return what a job hands out, as its status says it; None: nothing.

    Outputs beyond `RESULT_BYTES` are left out, and counted.
    """
    outputs, left = dict[str, str](), RESULT_BYTES
    for name, text in outcome.outputs:
        left -= len(name) + len(text.encode())
        if left < 0:
            break
        outputs[name] = text
    left_out = len(outcome.outputs) - len(outputs)
    result = {
        "artifacts": [
            {"digest": each.digest, "files": each.files, "name": each.name, "size": each.size}
            for each in outcome.artifacts
        ],
        "outputs": dict(sorted(outputs.items())),
        "outputs_left_out": left_out,
    }
    return {name: value for name, value in result.items() if value} or None


def context_of(job_name: str) -> str:
    """Return the name (context) of a job's commit status."""
    return f"{RUN_CONTEXT}/{job_name}"[:_NAME_LIMIT]


def describe_job(
    state: JobState, reason: Reason, *, detail: str, runs_on: str, attempt: int, failures: int = 0
) -> str:
    """Return one sentence about a job, for people who look at the commit.

    `failures` are those attempts that failed for a reason outside the job.
    """
    if not detail:
        return _described(state, reason, "", runs_on, attempt=attempt, failures=failures)
    return _words(state, reason, detail, runs_on, attempt=attempt, failures=failures)


def _words(state: JobState, reason: Reason, detail: str, runs_on: str, *, attempt: int, failures: int) -> str:
    match state:
        case JobState.WAITING if reason is Reason.RETRYING and detail:
            return shortened(detail[:1].upper() + detail[1:])
        case JobState.WAITING if reason not in _BY_REASON:
            words = f"Waits for a free slot on {runs_on}"
        case JobState.BLOCKED if reason is Reason.CONCURRENCY_GROUP:
            words = "Waits for its concurrency group"
        case JobState.BLOCKED:
            words = "Waits for the jobs that it needs"
        case JobState.APPROVAL:
            words = "Waits for approval"
        case JobState.RUNNING:
            words = "Runs" if attempt == 1 else f"Runs, attempt {attempt}"
        case JobState.SUCCEEDED:
            words = "Succeeded"
        case JobState.BACKOFF:
            words = f"{_BY_REASON.get(reason, 'It could not be run')}; it will be tried again"
        case JobState.ERRORED if reason in INFRASTRUCTURE:
            words = f"{_BY_REASON[reason]} (after {quantity(failures, 'attempt')})"
        case _:
            words = _BY_REASON.get(reason, state.value.replace("_", " ").capitalize())
    return shortened(f"{words}: {detail}" if detail else words)


# Most outcomes have no detail besides their state.
_described = lru_cache(maxsize=1024)(_words)


def detail_of(outcome: Outcome) -> str:
    """Return the detail of an outcome, besides its state and reason."""
    if outcome.detail:
        return storable(outcome.detail)
    if not outcome.step:
        return ""
    if outcome.reason is Reason.STEP_FAILED:
        return f"step {outcome.step!r} ended with exit code {outcome.exit_code}"
    if outcome.reason is Reason.STEP_TIMEOUT:
        return f"step {outcome.step!r} took longer than it may"
    return ""


def storable(text: str) -> str:
    """`text` as every database and message accepts it.

    No lone surrogates, no NUL, and of limited length.
    """
    return text[:_DETAIL_LIMIT].replace("\0", "\ufffd").encode(errors="replace").decode()


def describe_run(state: RunState, detail: str, jobs: Collection[JobState]) -> str:
    """Return one sentence about a whole run."""
    if detail:
        return shortened(f"{state.value.replace('_', ' ').capitalize()}: {detail}")
    if state is RunState.PLANNING:
        return "Accepted; its workflow will be read next"
    return _counted(tuple(jobs))


def describe_delayed(due: float) -> str:
    """Return one sentence about a run that starts at `due`, in seconds since the epoch."""
    return f"Accepted; it starts at {format_seconds(due)}"


# Most runs have few jobs, in few combinations of states.
@lru_cache(maxsize=256)
def _counted(jobs: tuple[JobState, ...]) -> str:
    counted = Counter(jobs)
    listed = ", ".join(
        f"{counted[each]} {each.value.replace('_', ' ')}" for each in JobState if counted[each]
    )
    return f"{quantity(len(jobs), 'job')}: {listed}" if jobs else "No jobs"


def shortened(text: str) -> str:
    """Return a description within the limit of a status."""
    return text if len(text) <= _DESCRIPTION_LIMIT else text[: _DESCRIPTION_LIMIT - 1] + "…"
