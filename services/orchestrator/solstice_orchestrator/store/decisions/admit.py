"""Decides how requests become runs. Pure.

The store's unique indexes decide which of them are new.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import RunState
from solstice_common.tracing.run_trace import run_trace
from solstice_common.values.times import parse_timestamp
from solstice_orchestrator.domain.cancels import change_key
from solstice_orchestrator.domain.statuses import (
    RUN_CONTEXT,
    Status,
    describe_delayed,
    describe_run,
    status_about,
)
from solstice_orchestrator.store.records.moment import Moment
from solstice_orchestrator.store.records.rows import key, request_fields

LONGEST_NAMES: Final = 600
"""Characters of a repository and a ref together, of at most four bytes each."""


class NewRun(NamedTuple):
    """A request on its way into the store, with its unique keys."""

    run_id: str
    request_key: bytes
    idempotency_key: bytes | None
    repository: str
    change_key: str | None
    ref: str | None
    state: RunState
    plan_at: float
    """The start time of a delayed run; 0 for one that may be planned at once."""
    pushed_at: float | None
    """When it came as a push of its ref, or begins if it is delayed; None for one that is no push."""
    request: JobRequestV1
    body: bytes
    signature: str | None
    """Who signed the body as it came; None where no signature was asked for."""


def new_runs(
    moment: Moment,
    requests: Sequence[JobRequestV1],
    bodies: Sequence[bytes],
    signatures: Sequence[str] | None = None,
    *,
    reruns: bool = False,
) -> list[NewRun]:
    """Return the runs that these requests would become, in order."""
    return [
        NewRun(
            moment.new_id(),
            key(request.request_id),
            None if request.idempotency_key is None else key(request.idempotency_key),
            request.repo_full_name or request.repo_url,
            change_key(request),
            request.ref,
            *_begins(request, moment.now),
            None if reruns else _pushed_at(request, moment.now),
            request,
            body if request_fields(body)["repo_url"] == request.repo_url else request.encode(),
            signature,
        )
        for request, body, signature in zip(
            requests, bodies, signatures or (None,) * len(requests), strict=True
        )
    ]


def _begins(request: JobRequestV1, now: float) -> tuple[RunState, float]:
    """Return the run's first state, and the time before which it is not planned."""
    if request.not_before is None:
        return RunState.PLANNING, 0.0
    due = parse_timestamp(request.not_before).timestamp()
    return (RunState.DELAYED, due) if due > now else (RunState.PLANNING, 0.0)


def _pushed_at(request: JobRequestV1, now: float) -> float | None:
    """Return since when a ref waits for this push; None if it is none."""
    if request.ref is None or request.change_number is not None:
        return None
    # The names are in an index, and PostgreSQL refuses an entry above 2,704 bytes: the run matters more.
    if len((request.repo_full_name or request.repo_url) + request.ref) > LONGEST_NAMES:
        return None
    return max(now, _begins(request, now)[1])


def traced_runs(moment: Moment, runs: Sequence[NewRun]) -> Sequence[str]:
    """Return the ids of those runs that are to be traced."""
    sampler = moment.rules.sampler
    if sampler is None:
        return ()
    return [run.run_id for run in runs if run_trace(run.request, sampler).sampled]


def first_statuses(moment: Moment, runs: Sequence[NewRun]) -> Sequence[Status]:
    """Return the first statuses of runs that are new."""
    at, base, sampler = moment.stamp, moment.rules.public_url, moment.rules.sampler
    planning = describe_run(RunState.PLANNING, "", ())
    return [
        replace(
            status_about(run.request, run_id=run.run_id, sampler=sampler),
            status_id=moment.new_id(),
            sequence=1,
            context=RUN_CONTEXT,
            state=run.state,
            description=describe_delayed(run.plan_at) if run.plan_at else planning,
            occurred_at=at,
            target_url=base and f"{base}/runs/{run.run_id}",
        )
        for run in runs
    ]
