"""Conversion of rows about artifacts, and about jobs that hand them out, to values. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from solstice_common.messages.states import JobState
from solstice_orchestrator.store.artifact_records import ArtifactView, NeededJob
from solstice_orchestrator.store.records.rows import DatabaseRow


def artifact_view(row: DatabaseRow) -> ArtifactView:
    return ArtifactView(
        run_id=row["run_id"],
        job_id=row["job_id"],
        job=row["job"],
        attempt=row["attempt"],
        name=row["name"],
        digest=row["digest"],
        size=row["size"],
        files=row["files"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )


def needed_jobs(jobs: Iterable[DatabaseRow], artifacts: Sequence[ArtifactView]) -> Mapping[str, NeededJob]:
    """Return jobs of one run by their names; `artifacts` are those of the run."""
    found = {}
    for row in jobs:
        name, state = row["name"], JobState(row["state"])
        own = {each.name: each for each in artifacts if each.job == name}
        has_succeeded = state is JobState.SUCCEEDED
        found[name] = NeededJob(
            name=name,
            state=state,
            artifacts=MappingProxyType(own if has_succeeded else {}),
            outputs=read_outputs(row["content"]),
        )
    return found


def read_outputs(content: str | None) -> Mapping[str, str]:
    """Return outputs by their names; None: there are none."""
    return MappingProxyType({} if content is None else json.loads(content))
