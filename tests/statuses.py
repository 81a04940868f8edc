"""Sample `jobstatus.v1` messages for tests of forge statuses."""

from collections.abc import Mapping
from typing import Any, Final

from solstice_common.messages import JobStatusV1, Source
from solstice_forge.statuses.reportable_status import ReportableStatus

SHA = "5f2c1a9be0d34c7788aa90b1c2d3e4f506172839"
_GITEA_STATES: Final = {
    "succeeded": "success", "failed": "failure", "errored": "error", "cancelled": "failure", "timed_out": "failure",
}  # fmt: skip
FORGE_STATES: Final[Mapping[Source, Mapping[str, str]]] = {
    Source.GITHUB: {
        "succeeded": "success", "failed": "failure", "errored": "error", "cancelled": "error", "timed_out": "failure",
    },
    Source.FORGEJO: _GITEA_STATES,
    Source.GITEA: _GITEA_STATES,
    Source.GITLAB: {
        "succeeded": "success", "failed": "failed", "errored": "failed", "cancelled": "canceled", "timed_out": "failed",
    },
}  # fmt: skip
"""The name of a job's end at each forge."""


def run_id(number: int) -> str:
    """The id of the run of that number; later runs have greater ones."""
    return f"{number:08x}-0000-7000-8000-000000000000"


def job_status(
    state: str = "waiting", *, run: int = 1, sequence: int = 1, source: str = "forgejo", **changes: Any
) -> JobStatusV1:
    """A status of the job `build`."""
    return JobStatusV1.model_validate(
        {
            "schema_version": "jobstatus.v1",
            "status_id": run_id(run * 1000 + sequence),
            "request_id": run_id(run),
            "run_id": run_id(run),
            "sequence": sequence,
            "source": source,
            "source_name": source,
            "repo_url": "https://forge.example/river/app.git",
            "repo_full_name": "river/app",
            "commit_sha": SHA,
            "context": "solstice/build",
            "state": state,
            "description": f"It is {state}",
            "occurred_at": "2026-03-01T12:00:00.000Z",
            **changes,
        },
        strict=False,
    )


def reportable_status(state: str = "waiting", **changes: Any) -> ReportableStatus:
    """The same status as the store keeps it."""
    status = job_status(state, **changes)
    return ReportableStatus(
        source_name=status.source_name or "",
        repository=status.repo_full_name or "",
        commit_sha=status.commit_sha,
        context=status.context,
        run_id=status.run_id,
        sequence=status.sequence,
        revision=status.revision or 0,
        state=status.state,
        request_id=status.request_id,
        body=status.encode(),
    )
