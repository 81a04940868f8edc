"""Check out the commit of an attempt."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.checkout_spec import CheckoutSpec
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.hosts import GitHosts
from solstice_orchestrator.git.objects.checkout_copy import CheckoutCopy
from solstice_orchestrator.git.objects.object_cache import CommitKey, FetchTarget, ObjectCache
from solstice_orchestrator.git.objects.planned_commits import PlannedCommits
from solstice_orchestrator.git.objects.small_checkouts import SmallCheckouts
from solstice_orchestrator.git.repository import directory_bytes
from solstice_orchestrator.git.visits import SILENT_SECONDS, Visit
from solstice_orchestrator.worker.executors.limited_log import LimitedLog
from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.executors.verdict import CANCELLED
from solstice_orchestrator.worker.workspaces import Workspace

SILENCE_CHECK_SECONDS: Final = 1.0
"""How often a checkout that has waited long for its git host is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCheckout:
    """Brings commits into workspaces; one per orchestrator."""

    git: GitPolicy
    scratch: Path
    """The directory for temporary files."""
    starting: Callable[[], AbstractContextManager[None]] = nullcontext
    """Called for each checkout, and entered for its time."""
    hosts: GitHosts = field(default_factory=GitHosts)
    """The circuit breakers of git hosts."""
    objects: ObjectCache | None = None
    """Objects of fetched commits, for further checkouts."""
    small_checkouts: SmallCheckouts | None = None
    """Small checkouts, for further ones of the same commits."""
    planned: PlannedCommits | None = None
    """Small commits that planning has fetched."""

    async def bring(
        self, execution: Execution, workspace: Workspace, log: LimitedLog, stop: asyncio.Event
    ) -> CheckoutCopy | Outcome | None:
        """Check out the commit; return an outcome when that ends the attempt, else None.

        A small checkout that is at hand is returned, for the caller to write.
        """
        spec = execution.spec.checkout
        if spec is not None:
            request, key = execution.request, CommitKey.of(execution.request, self.git, spec)
            await log.mark(LogMark.of("$ checkout"))
            await log.write(f"{request.commit_sha} of {request.repo_url}\n".encode())
            if copy := await self._at_hand(key):
                return copy
        with self.starting():
            # Also without a checkout, because its end lets the worker claim the next job.
            if spec is None:
                return None
            return await self._check_out(execution, spec, workspace, stop)

    async def _check_out(
        self,
        execution: Execution,
        spec: CheckoutSpec,
        workspace: Workspace,
        stop: asyncio.Event,
    ) -> Outcome | None:
        request = execution.request
        pause = self.hosts.pause_of(request.repo_url, holds_slot=True)
        if pause is not None:
            return _away(pause)
        with self.hosts.visit(request.repo_url, holds_slot=True) as visit:
            ended = await self._bring(execution, spec, workspace, stop, visit=visit)
        if ended is None and self.small_checkouts:
            self.small_checkouts.keep(CommitKey.of(request, self.git, spec), workspace.source)
        return ended

    async def _at_hand(self, key: CommitKey) -> CheckoutCopy | None:
        """Return a small checkout that needs no git.

        Its host must have given the commit a short time ago.
        """
        copy = None
        if self.small_checkouts and (
            self.objects is None or self.objects.is_proven(key._replace(spec=key.spec.of_commit))
        ):
            copy = self.small_checkouts.find(key)
        return await self.planned.find(key) if copy is None and self.planned else copy

    async def _bring(
        self,
        execution: Execution,
        spec: CheckoutSpec,
        workspace: Workspace,
        stop: asyncio.Event,
        *,
        visit: Visit,
    ) -> Outcome | None:
        request = execution.request
        bringing = asyncio.create_task(
            check_out(
                request,
                workspace.source,
                policy=self.git,
                scratch=self.scratch,
                objects=self.objects,
                spec=spec,
            ),
            name=f"checkout {execution.job_id}",
        )
        stopping = asyncio.create_task(stop.wait(), name=f"stop of {execution.job_id}")
        waiting = asyncio.create_task(
            self._reason_to_leave(visit, CommitKey.of(request, self.git, spec.of_commit), workspace),
            name=f"silence of {execution.job_id}",
        )
        others = [stopping, waiting]
        try:
            await asyncio.wait([bringing, *others], return_when=asyncio.FIRST_COMPLETED)
            if not bringing.done():
                return CANCELLED if stopping.done() else _away(waiting.result())
            bringing.result()
            self.hosts.answered(request.repo_url)
        except CheckoutFailed as error:
            if error.reason in {Reason.CHECKOUT_FAILED, Reason.HOST_AWAY}:
                self.hosts.failed(
                    request.repo_url, error.detail, host_away=error.host_away and not visit.answered
                )
            elif error.reason is not Reason.MACHINE_FAILED:
                self.hosts.answered(request.repo_url)
            state = JobState.FAILED if error.reason is Reason.COMMIT_UNUSABLE else JobState.ERRORED
            return Outcome(state=state, reason=error.reason, step="checkout", detail=error.detail[:1000])
        finally:
            for task in (bringing, *others):
                task.cancel()
            await asyncio.wait([bringing, *others])
        return None

    async def _reason_to_leave(self, visit: Visit, key: CommitKey, workspace: Workspace) -> str:
        """Return why the checkout must leave its slot to others, once it must."""
        await asyncio.sleep(SILENT_SECONDS)
        git_dir = workspace.source / ".git"
        while True:
            fetched = self.objects.fetched_into(key, git_dir) if self.objects else FetchTarget(git_dir)
            objects = fetched.git_dir / "objects"
            if (
                not visit.answered
                and await asyncio.to_thread(directory_bytes, objects) > fetched.bytes_before
            ):
                visit.answered = True
                self.hosts.answered(key.repo_url)
            why = self.hosts.gives_way(visit)
            if why is not None:
                return why
            await asyncio.sleep(SILENCE_CHECK_SECONDS)


def _away(why: str) -> Outcome:
    return Outcome(state=JobState.ERRORED, reason=Reason.HOST_AWAY, step="checkout", detail=why)
