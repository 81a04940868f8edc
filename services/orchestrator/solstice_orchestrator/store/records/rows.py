"""Conversion of the store's rows to values and back. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Protocol

import orjson

from solstice_common.messages import REMEMBERED_BYTES, Priority
from solstice_common.messages.states import JobState, RunState
from solstice_common.values.times import format_seconds, parse_timestamp
from solstice_orchestrator.domain.checkout_spec import (
    PLAIN_CHECKOUT,
    ChangeCommit,
    CheckoutSpec,
    Submodules,
)
from solstice_orchestrator.domain.handing_spec import NeededArtifact, NeededOutput, OutputSpec
from solstice_orchestrator.domain.jobs import (
    ArtifactSpec,
    CacheSpec,
    Concurrency,
    GroupMode,
    JobCondition,
    JobSpec,
    Reason,
    ReportSpec,
    StepCondition,
    StepSpec,
)
from solstice_orchestrator.scheduling.order import PRIORITY_ORDER
from solstice_orchestrator.store.records.changes import ChunkRow
from solstice_orchestrator.store.records.container_rows import container_fields, read_container
from solstice_orchestrator.store.views import AttemptView, ChunkKind, JobView, LogChunk, RunView

_NEWER_STEPS: Final[Sequence[Mapping[str, Any]]] = [
    {
        "name": "update this orchestrator",
        "run": "echo 'a job whose steps have conditions, which needs a newer orchestrator here' >&2; exit 1",
        "env": {},
        "timeout_seconds": None,
    }
]
"""What orchestrators of older versions run in place of steps whose conditions they do not know."""


class DatabaseRow(Protocol):
    """A row of any database, by the names of its columns."""

    def __getitem__(self, column: str, /) -> Any: ...


def timestamp(at: float) -> str:
    """Return the seconds since the epoch as messages write them."""
    return format_seconds(at)


def chunk_of(row: DatabaseRow) -> LogChunk:
    """Return a log row as a chunk; older versions stored marks as output."""
    kind = ChunkKind(row["kind"] or ChunkKind.OUTPUT)
    return LogChunk(sequence=row["sequence"], at=row["at"], data=row["data"], kind=kind)


def log_rows(job_id: str, attempt: int, chunks: Iterable[LogChunk], service: str = "") -> Sequence[ChunkRow]:
    """Return the rows of these chunks."""
    return [
        ChunkRow(
            job_id,
            attempt,
            chunk.sequence,
            chunk.at,
            chunk.data,
            None if chunk.kind is ChunkKind.OUTPUT else chunk.kind.value,
            service,
        )
        for chunk in chunks
    ]


def key(text: str) -> bytes:
    """Return the 16-byte digest of a request id or idempotency key, for unique indexes."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def request_fields(body: bytes) -> dict[str, Any]:
    """Return a stored request as plain JSON; admission has validated it."""
    try:
        fields: dict[str, Any] = orjson.loads(body)
    except orjson.JSONDecodeError:
        # An unknown field with an integer beyond every float: the slower decoder reads it.
        fields = json.loads(body)
    return fields


def encode_spec(spec: JobSpec) -> bytes:
    """Return a job's spec as JSON, for the store alone."""
    steps = [
        {
            "name": step.name,
            "run": step.run,
            "env": dict(step.env),
            "timeout_seconds": step.timeout_seconds,
            **({"secrets": step.secrets} if step.secrets else {}),
            **({} if step.is_plain else {"if": [step.when, step.condition, step.may_fail]}),
        }
        for step in spec.steps
    ]
    is_plain = not spec.later and all(step.is_plain for step in spec.steps)
    return orjson.dumps(
        {
            "name": spec.name,
            "runs_on": spec.runs_on,
            **({"steps": steps} if is_plain else {"steps": _NEWER_STEPS, "steps_with_conditions": steps}),
            "needs": spec.needs,
            "env": dict(spec.env),
            "timeout_seconds": spec.timeout_seconds,
            "priority": spec.priority.value,
            "condition": spec.condition.value,
            "retries": spec.retries,
            "no_output_seconds": spec.no_output_seconds,
            "concurrency": encode_concurrency(spec.concurrency),
            "matrix": dict(spec.matrix),
            **({"secrets": spec.secrets} if spec.secrets else {}),
            **container_fields(spec),
            **({} if spec.checkout == PLAIN_CHECKOUT else {"checkout": spec.checkout}),
            **({"artifacts": spec.artifacts} if spec.artifacts else {}),
            **({"notice": spec.notice} if spec.notice else {}),
            **({"caches": spec.caches} if spec.caches else {}),
            **({"needed_artifacts": spec.needed_artifacts} if spec.needed_artifacts else {}),
            **({"reports": spec.reports} if spec.reports else {}),
            **({"outputs": spec.outputs} if spec.outputs else {}),
            **({"needed_outputs": spec.needed_outputs} if spec.needed_outputs else {}),
        }
    )


def decode_spec(text: bytes) -> JobSpec:
    """Return the job's spec that `encode_spec` wrote, now or in an older version.

    Specs are cached: pushes of one workflow ask for the same jobs. Large ones are decoded each time, so that the cache
    stays small.
    """
    return _remembered_spec(text) if len(text) <= REMEMBERED_BYTES else _read_spec(text)


def _read_spec(text: bytes) -> JobSpec:
    fields = orjson.loads(text)
    steps = tuple(
        StepSpec(
            name=step["name"],
            run=step["run"],
            env=MappingProxyType(step["env"]),
            timeout_seconds=step["timeout_seconds"],
            secrets=tuple(step.get("secrets", ())),
            **_condition_of(step),
        )
        for step in fields.get("steps_with_conditions", fields["steps"])
    )
    return JobSpec(
        name=fields["name"],
        runs_on=fields["runs_on"],
        steps=steps,
        needs=tuple(fields["needs"]),
        env=MappingProxyType(fields["env"]),
        timeout_seconds=fields["timeout_seconds"],
        priority=Priority(fields["priority"]),
        condition=JobCondition(fields.get("condition", JobCondition.SUCCESS)),
        retries=fields.get("retries", 0),
        no_output_seconds=fields.get("no_output_seconds"),
        concurrency=decode_concurrency(fields.get("concurrency")),
        matrix=MappingProxyType(fields.get("matrix", {})),
        secrets=tuple(fields.get("secrets", ())),
        container=read_container(
            fields.get("own_container") or fields.get("container_with_services") or fields.get("container")
        ),
        checkout=_read_checkout(fields["checkout"]) if "checkout" in fields else PLAIN_CHECKOUT,
        artifacts=tuple(ArtifactSpec(**artifact) for artifact in fields.get("artifacts", ())),
        reports=tuple(ReportSpec(**report) for report in fields.get("reports", ())),
        notice=fields.get("notice", ""),
        caches=tuple(_read_cache(cache) for cache in fields.get("caches", ())),
        outputs=tuple(OutputSpec(**output) for output in fields.get("outputs", ())),
        needed_outputs=tuple(NeededOutput(**needed) for needed in fields.get("needed_outputs", ())),
        needed_artifacts=tuple(NeededArtifact(**needed) for needed in fields.get("needed_artifacts", ())),
    )


def _read_cache(fields: Mapping[str, Any]) -> CacheSpec:
    return CacheSpec(
        name=fields["name"],
        paths=tuple(fields["paths"]),
        key=fields["key"],
        fallbacks=tuple(fields["fallbacks"]),
    )


def _condition_of(step: Mapping[str, Any]) -> dict[str, Any]:
    if "if" not in step:
        return {}
    when, condition, may_fail = step["if"]
    return {"when": StepCondition(when), "condition": condition, "may_fail": may_fail}


def _read_checkout(fields: Mapping[str, Any] | None) -> CheckoutSpec | None:
    if fields is None:
        return None
    return CheckoutSpec(
        depth=fields["depth"],
        tags=fields["tags"],
        submodules=Submodules(fields["submodules"]),
        lfs=fields["lfs"],
        ref=ChangeCommit(fields["ref"]),
    )


_remembered_spec = lru_cache(maxsize=512)(_read_spec)


def encode_concurrency(concurrency: Concurrency | None) -> dict[str, str] | None:
    """Return a concurrency group as JSON; None stays None."""
    return None if concurrency is None else {"group": concurrency.group, "mode": concurrency.mode.value}


def decode_concurrency(fields: Mapping[str, str] | None) -> Concurrency | None:
    """Return the concurrency group that `encode_concurrency` wrote."""
    return Concurrency(group=fields["group"], mode=GroupMode(fields["mode"])) if fields else None


def run_view(row: DatabaseRow) -> RunView:
    request = request_fields(row["request"])
    return RunView(
        run_id=row["run_id"],
        request_id=request["request_id"],
        state=RunState(row["state"]),
        detail=row["detail"],
        source=request["source"],
        repo_url=request["repo_url"],
        repo_full_name=request.get("repo_full_name"),
        commit_sha=request["commit_sha"],
        ref=request.get("ref"),
        event=request.get("event"),
        change_number=request.get("change_number"),
        sender=request.get("sender"),
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        rerun_of=row["rerun_of"],
        source_name=request.get("source_name"),
        not_before=_moment(request.get("not_before")),
        delivery_id=request.get("delivery_id"),
    )


def _moment(text: str | None) -> float | None:
    return None if text is None else parse_timestamp(text).timestamp()


def job_view(row: DatabaseRow) -> JobView:
    return JobView(
        job_id=row["job_id"],
        run_id=row["run_id"],
        name=row["name"],
        state=JobState(row["state"]),
        reason=Reason(row["reason"]),
        detail=row["detail"],
        runs_on=row["runs_on"],
        needs=tuple(json.loads(row["needs"])),
        priority=PRIORITY_ORDER[row["priority"]],
        attempt=row["attempt"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        retry_at=row["retry_at"],
        exit_code=row["exit_code"],
        step=row["step"],
        worker_id=row["worker_id"],
        retries=row["retries"],
        retried=row["retried"],
        sequence=row["sequence"],
    )


def attempt_view(row: DatabaseRow) -> AttemptView:
    return AttemptView(
        number=row["number"],
        worker_id=row["worker_id"],
        state=JobState(row["state"]),
        reason=Reason(row["reason"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        exit_code=row["exit_code"],
        step=row["step"],
        detail=row["detail"],
        image=row["image"],
        provisioning_seconds=row["provisioning_seconds"],
    )
