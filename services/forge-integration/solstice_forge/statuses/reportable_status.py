"""Reads from a `jobstatus.v1` which status to show on which commit. Pure.

`jobstatus.v1` -> `ReportableStatus`, or why not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from solstice_common.broker.delivery import Refuse
from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobStatusV1
from solstice_common.messages.states import FINAL
from solstice_common.values.value import Value
from solstice_forge.remote.protocol import CommitStatus


class ReportableStatus(Value, frozen=True, kw_only=True):
    """The newest known status of one context of one commit."""

    source_name: str
    repository: str
    commit_sha: str
    context: str
    run_id: str
    sequence: int
    revision: int
    state: str
    request_id: str
    body: bytes

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def place(self) -> str:
        """Its place among the statuses of its context, as one word."""
        return place(self.run_id, self.sequence, self.revision)


def place(run_id: str, sequence: int, revision: int) -> str:
    """Return a status's place in its context; equal for a message that comes again."""
    return f"{run_id}.{sequence}.{revision}"


@dataclass(frozen=True, slots=True)
class NotReported:
    """The status goes to no forge; `reason` is one word of a closed list."""

    reason: str


NO_SOURCE: Final = NotReported("no_source")
"""The run was requested by hand; no hook received it."""
NO_CREDENTIALS: Final = NotReported("no_credentials")
"""Its source has no token, so its forge gets no statuses."""


def reportable(body: bytes, has_remote: Mapping[str, bool]) -> ReportableStatus | NotReported | Refuse:
    """Return what `body` asks for.

    `has_remote` says for each source, by name, whether its forge can be called.
    """
    try:
        status = JobStatusV1.decode(body)
    except InvalidMessage as error:
        return Refuse(reason=error.reason, detail=error.detail)
    name = status.source_name
    if name is None:
        return NO_SOURCE
    if name not in has_remote:
        return Refuse(
            reason="unknown_source",
            detail=f"there is no source {name!r} here any more: configure it and replay this, or drop it",
        )
    if not has_remote[name]:
        return NO_CREDENTIALS
    repository = status.repo_full_name or _path_of(status.repo_url)
    if not repository:
        return Refuse(reason="no_repository", detail=f"{status.repo_url} names no repository of a forge")
    return ReportableStatus(
        source_name=name,
        repository=repository,
        commit_sha=status.commit_sha,
        context=status.context,
        run_id=status.run_id,
        sequence=status.sequence,
        revision=status.revision or 0,
        state=status.state,
        request_id=status.request_id,
        body=body,
    )


def commit_status(repository: str, body: bytes) -> CommitStatus:
    """Return the status for the forge; `reportable` accepted `body` before."""
    status = JobStatusV1.decode(body)
    return CommitStatus(
        repository=repository,
        commit_sha=status.commit_sha,
        context=status.context,
        state=status.state,
        description=status.description or status.state.replace("_", " "),
        occurred_at=status.occurred_at,
        target_url=status.target_url,
        ref=status.ref,
        external_id=status.job_id or status.run_id,
        tests=status.tests,
    )


def _path_of(repo_url: str) -> str:
    path = unquote(urlsplit(repo_url).path).strip("/").removesuffix(".git")
    return path if "/" in path else ""
