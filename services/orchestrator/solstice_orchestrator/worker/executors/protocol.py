"""The protocol of executors: an executor runs one attempt and returns its outcome."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.jobs import JobSpec, Outcome
from solstice_orchestrator.reports.values import JobReport
from solstice_orchestrator.store.artifact_records import (
    ArtifactAnswer,
    ArtifactRecord,
    NeededJob,
    NeededJobs,
    RecordArtifact,
)
from solstice_orchestrator.store.records.report_records import RecordReport, ReportRecord

LogWriter = Callable[[bytes], Awaitable[None]]
"""Takes output and marks (`log_marks.LogMark`) in order; it slows a job down by returning late."""
ServiceLogWriter = Callable[[str, bytes], Awaitable[None]]
"""The same for the log of a service, by its name."""


async def not_logged(_service: str, _data: bytes) -> None:
    """Take the output of a service whose log is of no interest."""


ImageWriter = Callable[[str], Awaitable[None]]
"""Takes the image, with its digest, in whose container an attempt is about to run."""


async def not_recorded(_image: str) -> None:
    """Take the image of an attempt whose image is of no interest."""


async def stored_nowhere(_artifact: ArtifactRecord, _most_bytes: int) -> ArtifactAnswer:
    """Take the artifact of an attempt whose artifacts no store has."""
    return ArtifactAnswer.STORED


async def no_needed_jobs(_names: Collection[str]) -> Mapping[str, NeededJob]:
    """Return the jobs of an attempt that needs none."""
    return {}


async def reported_nowhere(_record: ReportRecord) -> bool:
    """Take the test report of an attempt whose reports no store has."""
    return True


def without_secrets(report: JobReport) -> JobReport:
    """Return the report of an attempt that has no secrets."""
    return report


class Provisioning:
    """The time in which an executor prepares the container or VM of an attempt."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, on_begun: Callable[[], object] = lambda: None
    ) -> None:
        """`on_begun` is called when it begins. Most attempts prepare nothing."""
        self._clock, self._on_begun = clock, on_begun
        self._begun_at: float | None = None
        self._seconds: float | None = None
        self.done = asyncio.Event()

    def begin(self) -> None:
        self._begun_at = self._clock()
        self._on_begun()

    def end(self) -> None:
        """The container or VM is ready, or was given up; safe to repeat."""
        if self._begun_at is not None and self._seconds is None:
            self._seconds = self._clock() - self._begun_at
            self.done.set()

    @property
    def seconds(self) -> float | None:
        """Return how long it has taken; None: it has not begun."""
        if self._seconds is None and self._begun_at is not None:
            return self._clock() - self._begun_at
        return self._seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One attempt, as an executor sees it."""

    job_id: str
    attempt: int
    spec: JobSpec
    request: JobRequestV1
    traceparent: str | None = None
    """The context that the job's own spans join; None while nothing is traced."""
    secrets: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """The secrets that the spec names, by name. The caller masks them in the output."""
    service_log: ServiceLogWriter = field(default=not_logged, repr=False)
    image_found: ImageWriter = field(default=not_recorded, repr=False)
    record_artifact: RecordArtifact = field(default=stored_nowhere, repr=False)
    given: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """Variables of the steps: outputs of jobs that it needs."""
    needed_jobs: NeededJobs = field(default=no_needed_jobs, repr=False)
    record_report: RecordReport = field(default=reported_nowhere, repr=False)
    masked_report: Callable[[JobReport], JobReport] = field(default=without_secrets, repr=False)
    """Masks the secrets in the texts of a test report."""
    provisioning: Provisioning = field(default_factory=Provisioning, repr=False)


class Executor(Protocol):
    """Runs attempts. Any number of `run` calls may be under way at once.

    * `run` returns an Outcome and raises nothing but CancelledError: infrastructure failures are outcomes
    with an infrastructure reason; failures of the job have the job's own reasons. * When `stop` is set (the
    job was cancelled), the whole process tree gets SIGTERM, after the grace SIGKILL, and the outcome is
    CANCELLED / CANCEL_REQUESTED. * When the task is cancelled (we are fenced, or shut down hard), the whole
    process tree is killed before CancelledError leaves. * When `run` has returned or raised, no process of
    the attempt is alive and its workspace is gone.
    """

    @property
    def isolates(self) -> bool:
        """Whether a hostile job is isolated from the rest of the machine."""
        ...

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome: ...
