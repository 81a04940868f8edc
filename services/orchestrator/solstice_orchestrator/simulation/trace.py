"""Read and write traces: JSON lines, one job per line, in order of arrival.

The jobs of one run stand next to each other, with the same `run`. Times and durations are seconds.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority
from solstice_common.values.value import Value
from solstice_orchestrator.domain.jobs import GroupMode

Name = Annotated[str, Meta(min_length=1)]


class TraceGroup(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A concurrency group, and what happens to its older members when a new one comes."""

    group: Name
    mode: GroupMode = GroupMode.QUEUE


class TraceJob(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of a trace: a job that ran."""

    at: Annotated[float, Meta(ge=0)]
    """When its run was planned, counted from any start."""
    repository: Name
    label: Name
    seconds: Annotated[float, Meta(ge=0)]
    """How long it uses a slot."""
    priority: Priority = Priority.DEFAULT
    run: str = ""
    """The same for all jobs of a run; empty: a run of its own."""
    name: str = ""
    """Required when other jobs need it."""
    needs: tuple[Name, ...] = ()
    """Names of jobs of its run that must end before it waits for a slot."""
    concurrency: TraceGroup | None = None
    """The job holds it while it waits for a slot and runs."""
    run_concurrency: TraceGroup | None = None
    """Its whole run holds it; the same on all lines of the run."""


TraceRun = Sequence[TraceJob]
"""The jobs of one run, in the order of the trace."""


class InvalidTrace(ConfigurationError):
    """A line of a trace is invalid; `line` counts from 1."""

    def __init__(self, where: str, line: int, problem: str) -> None:
        super().__init__(f"{where}, line {line}: {problem}")
        self.where = where
        self.line = line
        self.problem = problem


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(TraceJob)


def encode(job: TraceJob) -> bytes:
    """Return the job as a line, with its line end."""
    return _ENCODER.encode(job) + b"\n"


def read_runs(lines: Iterable[bytes], where: str) -> Iterator[TraceRun]:
    """Read the runs of a trace, skipping empty lines.

    `where` names the trace in errors. Raises InvalidTrace.
    """
    run: list[TraceJob] = []
    numbers: list[int] = []
    at = 0.0
    for number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        try:
            job = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidTrace(where, number, _problem(line, error)) from None
        if job.at < at:
            raise InvalidTrace(
                where,
                number,
                f"it begins at {job.at:g}, the line before it at {at:g}; sort the lines by `at`",
            )
        at = job.at
        if run and not (job.run and job.run == run[0].run):
            yield _whole(run, numbers, where)
            run, numbers = [], []
        run.append(job)
        numbers.append(number)
    if run:
        yield _whole(run, numbers, where)


def of_label(runs: Iterable[TraceRun], label: str) -> Iterator[TraceRun]:
    """Yield the runs, reduced to their jobs of one label."""
    for run in runs:
        if label_jobs := [job for job in run if job.label == label]:
            yield label_jobs


def _whole(run: TraceRun, numbers: Sequence[int], where: str) -> TraceRun:
    """Return the run, if its lines agree; else raise InvalidTrace."""
    if len(run) == 1 and not run[0].needs:
        return run
    begun = run[0]
    known: dict[str, int] = {}
    for number, job in zip(numbers, run, strict=True):
        if (job.at, job.repository, job.run_concurrency) != (
            begun.at,
            begun.repository,
            begun.run_concurrency,
        ):
            raise InvalidTrace(
                where,
                number,
                f"jobs of one run have the same `at`, `repository` and `run_concurrency`, and the run {job.run!r} "
                f"begins in line {numbers[0]} with others",
            )
        if job.name and known.setdefault(job.name, number) != number:
            raise InvalidTrace(
                where, number, f"the run has a job {job.name!r} already, in line {known[job.name]}"
            )
    met: set[str] = set()
    left = dict(zip(numbers, run, strict=True))
    for number, job in left.items():
        if unknown := [need for need in job.needs if need not in known]:
            raise InvalidTrace(
                where, number, f"it needs {unknown[0]!r}, and no line of its run beside it has that `name`"
            )
    while ready := [number for number, job in left.items() if met.issuperset(job.needs)]:
        met.update(left.pop(number).name for number in ready)
    if left:
        raise InvalidTrace(where, min(left), "it needs itself, by way of what it needs")
    return run


def _problem(line: bytes, error: Exception) -> str:
    """Return the error as text; a line that is no object gets an example."""
    if isinstance(error, msgspec.ValidationError):
        return str(error)
    example = encode(TraceJob(at=12.5, repository="acme/app", label="linux", seconds=95.0)).decode().strip()
    return (
        f"{line[:60].decode(errors='replace').strip()!r} is not JSON ({error}); write for example {example}"
    )
