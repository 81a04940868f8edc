"""The words of the pages for states, reasons, times, names and links. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, urlsplit

from solstice_common.messages.states import JobState, RunState
from solstice_common.values.times import duration
from solstice_common.values.visible_text import visible
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.domain.statuses import detail_of
from solstice_orchestrator.queue_times.explanation import refusal_text
from solstice_orchestrator.queue_times.forecast import Forecast
from solstice_orchestrator.reports.reduction import counted
from solstice_orchestrator.reports.values import CaseCounts
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.scheduling.workers import Presence, WorkerState, WorkerView
from solstice_orchestrator.store.schedule_store import ScheduleView, TickView
from solstice_orchestrator.store.views import JobView, RunView

LINE: Final = 200
"""The most characters of an error that a list shows."""
STATE_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        RunState.DELAYED: "Delayed",
        RunState.PLANNING: "Planning",
        JobState.BLOCKED: "Blocked",
        JobState.WAITING: "Waiting",
        JobState.BACKOFF: "Retry soon",
        JobState.APPROVAL: "Needs approval",
        JobState.RUNNING: "Running",
        JobState.SUCCEEDED: "Succeeded",
        JobState.FAILED: "Failed",
        JobState.ERRORED: "Errored",
        JobState.CANCELLED: "Cancelled",
        JobState.TIMED_OUT: "Timed out",
        JobState.SKIPPED: "Skipped",
    }
)
TONES: Final[Mapping[str, str]] = MappingProxyType(
    {
        JobState.SUCCEEDED: "good",
        JobState.FAILED: "bad",
        JobState.ERRORED: "bad",
        JobState.TIMED_OUT: "bad",
        JobState.RUNNING: "busy",
        RunState.PLANNING: "busy",
        JobState.BACKOFF: "warn",
        JobState.APPROVAL: "warn",
    }
)
"""The colour family of each state; all others are calm.

Colour is never the only sign: icon and word say the same.
"""

_REASONS: Final = MappingProxyType(
    {
        Reason.COMPLETED: "Every step ended well.",
        Reason.STEP_FAILED: "A step ended with an error.",
        Reason.JOB_TIMEOUT: "It took longer than the job's time limit.",
        Reason.STEP_TIMEOUT: "A step took longer than its time limit.",
        Reason.NO_OUTPUT: "It wrote nothing for longer than it may.",
        Reason.RUN_TIMEOUT: "Its run took longer than the run's time limit.",
        Reason.CANCEL_REQUESTED: "It was cancelled.",
        Reason.SECRET_MISSING: "It names a secret that is not given to it.",
        Reason.CONTAINER_REFUSED: "Its worker does not give it the container that it asks for.",
        Reason.IMAGE_UNAVAILABLE: "Its image cannot be had.",
        Reason.OUT_OF_MEMORY: "It needed more memory than it may use.",
        Reason.OUT_OF_DISK: "It needed more disk space than it may use.",
        Reason.SERVICE_DIED: "A service of it ended too early.",
        Reason.SERVICE_NOT_READY: "A service of it was not ready in time.",
        Reason.ARTIFACT_REFUSED: "An artifact of it cannot be kept.",
        Reason.REPORT_UNUSABLE: "A test report that it requires is missing, has no test, or cannot be read.",
        Reason.ARTIFACT_NOT_STORED: "There was no room for an artifact of it, or the directory of artifacts failed.",
        Reason.OUTPUT_REFUSED: "An output of it, or of jobs that it needs, cannot be used.",
        Reason.ARTIFACT_MISSING: "An artifact that it needs was never made, or has expired.",
        Reason.ARTIFACT_NOT_PLACED: "Something in its workspace is in the way of an artifact that it needs.",
        Reason.SUPERSEDED: "A newer run took its place.",
        Reason.NEEDS_FAILED: "A job that it needs did not succeed.",
        Reason.CONDITION_UNMET: "Its condition leaves it out of this run.",
        Reason.EVENT_NOT_BUILT: "The workflow file's `on` does not name what happened.",
        Reason.INVALID_WORKFLOW: "The workflow file cannot be used.",
        Reason.COMMIT_NOT_FOUND: "The repository or the commit could not be found.",
        Reason.NOT_TRUSTED: "The code is a stranger's, and the operator does not let it run here.",
        Reason.AGENT_LOST: "The orchestrator that ran it disappeared.",
        Reason.LEASE_EXPIRED: "The orchestrator that ran it stopped renewing its lease.",
        Reason.PROVISION_FAILED: "The place to run it could not be prepared.",
        Reason.CHECKOUT_FAILED: "The commit could not be fetched.",
        Reason.ARTIFACT_UNAVAILABLE: "The archive of an artifact that it needs is not there, or damaged.",
        Reason.EXECUTOR_FAILED: "The executor broke.",
        Reason.MACHINE_FAILED: "The machine lacked disk, memory, processes or git.",
        Reason.HOST_AWAY: "Its git host did not answer others, and was not asked again yet.",
        Reason.COMMIT_UNUSABLE: "The commit itself cannot be checked out.",
    }
)


def state_words(state: JobState | RunState) -> str:
    """Return the state in words, for example `Timed out`."""
    return STATE_WORDS.get(state.value, state.value)


def tone(state: JobState | RunState) -> str:
    """`good`, `bad`, `busy`, `warn` or `calm`."""
    return TONES.get(state.value, "calm")


def run_trouble(run: RunView) -> str:
    """Return one line about the error of a run that ended without a verdict.

    Empty for all other runs.
    """
    if run.state not in {RunState.ERRORED, RunState.CANCELLED, RunState.TIMED_OUT, RunState.SKIPPED}:
        return ""
    return _first_line(run.detail)


def _first_line(text: str) -> str:
    first_line = text.strip().partition("\n")[0]
    return f"{first_line[:LINE]}…" if len(first_line) > LINE else first_line


def reason_words(job: JobView) -> str:
    """Return a sentence about the reason of the job's state, and one about its tries."""
    if job.state is JobState.CANCELLED and job.reason is Reason.CANCEL_REQUESTED:
        return _cancelled(_first_line(job.detail))
    spent = job.retried and job.state in {JobState.FAILED, JobState.TIMED_OUT}
    return f"{_why(job)} It was tried {job.retried + 1} times." if spent else _why(job)


def _why(job: JobView) -> str:
    why = _REASONS.get(job.reason, "")
    match job.state:
        case JobState.BLOCKED if job.reason is Reason.CONCURRENCY_GROUP:
            why = "Waits for its concurrency group."
        case JobState.BLOCKED:
            why = f"Waits for {_listed(job.needs)}." if job.needs else "Waits for the jobs it needs."
        case JobState.WAITING if job.reason is Reason.RETRYING:
            why = f"It failed and is tried again; waits for a free slot of {job.runs_on}."
        case JobState.WAITING:
            why = f"Waits for a free slot of {job.runs_on}."
        case JobState.BACKOFF:
            why = f"{why} It will be tried again."
        case JobState.APPROVAL:
            why = "Waits for approval."
        case JobState.RUNNING:
            why = f"Runs step “{job.step}”." if job.step else ""
        case JobState.TIMED_OUT if job.step and job.reason is Reason.STEP_TIMEOUT:
            why = f"Step “{job.step}” took longer than its time limit."
        case JobState.FAILED if job.step:
            code = "" if job.exit_code is None else f" with exit code {job.exit_code}"
            why = f"Step “{job.step}” ended{code}."
        case _:
            pass
    return why


def _cancelled(by: str) -> str:
    if by.startswith("cancelled "):
        return f"It was {by}."
    return f"It was cancelled ({by})." if by else "It was cancelled."


def more(job: JobView) -> str:
    """Return the stored detail; empty when it only repeats `reason_words`."""
    if not job.state.final:
        return job.detail
    bare = Outcome(state=job.state, reason=job.reason, exit_code=job.exit_code, step=job.step)
    names_requester = job.reason is Reason.CANCEL_REQUESTED and job.detail in reason_words(job)
    return "" if job.detail == detail_of(bare) or names_requester else job.detail


def expected(start: Forecast, now: float) -> str:
    """Write an expected time: `in about 12 s`, `any moment`."""
    earliest, latest = (duration(max(0.0, moment - now)) for moment in (start.earliest, start.latest))
    if start.latest <= now:
        return "any moment"
    return f"in about {latest}" if earliest == latest else f"in {earliest} to {latest}"


def repository(run: RunView | ScheduleView) -> str:
    """`owner/name`, else the end of the URL."""
    return (
        run.repo_full_name or run.repo_url.rstrip("/").rpartition("/")[2].removesuffix(".git") or run.repo_url
    )


def ref_words(run: RunView) -> str:
    """`main`, `tag v1`, `#7`; empty when the request has none."""
    if run.change_number is not None:
        return f"#{run.change_number}"
    ref = run.ref or ""
    if ref.startswith("refs/tags/"):
        return f"tag {ref.removeprefix('refs/tags/')}"
    return ref.removeprefix("refs/heads/")


def commit_link(run: RunView) -> str | None:
    """Return the commit's URL at the forge; None when the repository has no web page."""
    base = _web_base(run)
    return base and f"{base}/{'-/' if run.source == 'gitlab' else ''}commit/{quote(run.commit_sha)}"


def change_link(run: RunView) -> str | None:
    """Return the URL of the pull or merge request at the forge."""
    base, kinds = _web_base(run), {"github": "pull", "gitlab": "-/merge_requests"}
    if base is None or run.change_number is None:
        return None
    return f"{base}/{kinds.get(run.source, 'pulls')}/{run.change_number}"


def worker_state(worker: WorkerView) -> str:
    """Return its state in words; `Lost` or `Ended` when it is not alive."""
    present = worker.presence is Presence.ALIVE
    return str(worker.state if present else worker.presence).capitalize()


def worker_tone(worker: WorkerView) -> str:
    """As `tone`, for a worker."""
    if worker.presence is not Presence.ALIVE:
        return "bad" if worker.presence is Presence.LOST else "calm"
    return {WorkerState.ACTIVE: "good", WorkerState.QUARANTINED: "bad"}.get(worker.state, "warn")


def worker_remark(worker: WorkerView, now: float) -> str:
    """Return why the worker takes fewer jobs or none; empty if it takes all."""
    if worker.presence is Presence.LOST:
        return "Its heartbeat stopped; what it ran is run elsewhere."
    if worker.state is WorkerState.DRAINING and worker.presence is Presence.ALIVE:
        return "Ends itself when its jobs have ended."
    if worker.state is WorkerState.PAUSED:
        return "Takes no jobs until it is resumed, also after a restart."
    if worker.state is WorkerState.QUARANTINED and worker.quarantined_until is not None:
        failures = worker.failures_in_a_row
        why = f" after {failures} infrastructure failures in a row" if failures else ""
        return f"Takes no jobs for {duration(worker.quarantined_until - now)}{why}."
    return _pressure(worker, now) if worker.presence is Presence.ALIVE else ""


def _pressure(worker: WorkerView, now: float) -> str:
    if worker.refuses is not None:
        return f"Starts no jobs for lack of {worker.refuses}: {refusal_text(worker, now)}."
    if worker.repositories_last:
        return (
            "Was quarantined after infrastructure failures: until a job has ended here by itself, jobs of other repositories "
            f"start before those of {', '.join(worker.repositories_last)}."
        )
    if worker.shrunk_to is not None:
        return f"Takes {worker.shrunk_to} at once for now, after failures or under load."
    return ""


def worker_orders(worker: WorkerView) -> tuple[tuple[str, str], ...]:
    """Return the orders that are useful now, with the words of their buttons."""
    if worker.presence is Presence.ALIVE and worker.state is WorkerState.DRAINING:
        return ()
    held_back = worker.state is not WorkerState.ACTIVE or worker.quarantined_until is not None
    other = ("resume", "Resume") if held_back else ("pause", "Pause")
    return (other, ("drain", "Drain")) if worker.presence is Presence.ALIVE else (other,)


def tick_words(tick: TickView) -> str:
    """Return the result of a tick without a run: `Missed`, `Failed`, `Due`."""
    if tick.reason is TickReason.MISSED:
        return "Missed" if tick.count == 1 else f"Missed {tick.count}"
    return tick.state.value.capitalize()


def tick_tone(tick: TickView) -> str:
    """As `tone`, for a tick."""
    tones = {
        TickState.FIRED: "good",
        TickState.FAILED: "bad",
        TickState.DUE: "busy",
        TickState.SKIPPED: "warn",
    }
    return tones[tick.state]


def schedule_orders(schedule: ScheduleView) -> tuple[tuple[str, str], ...]:
    """Return the actions that are useful now, with the words of their buttons."""
    return (("resume", "Resume") if schedule.paused else ("pause", "Pause"), ("fire", "Run now"))


def _web_base(run: RunView) -> str | None:
    try:
        parts = urlsplit(run.repo_url)
    except ValueError:
        return None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        return None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('.git')}"


def _listed(names: tuple[str, ...]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def tests(counts: CaseCounts) -> str:
    """Return how many tests there are, and how they ended."""
    return counted(counts)


def shown(text: str) -> str:
    """Return what a job wrote, with escapes for what would change how it is shown."""
    return visible(text)
