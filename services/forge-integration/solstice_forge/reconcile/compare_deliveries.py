"""Finds failed deliveries in the records of GitHub and GitLab, and has them sent again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import structlog

from solstice_common.messages import Source
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.log_events import LogEvent
from solstice_forge.reconcile.calls import ReconcileSession, Unanswered
from solstice_forge.reconcile.report import ReconcileFindings, ReconcileProblem, ResentDelivery
from solstice_forge.reconcile.resending import ResendVerdict, failed, is_past, next_cursor, verdict
from solstice_forge.remote import github_hooks, gitlab_hooks
from solstice_forge.remote.hooks import Attempt, Hook, HookDialect, HookOwner, calls_us
from solstice_forge.remote.protocol import CallDone, CallPostponed, CallRefused

log = structlog.get_logger(__name__)

HOOKS: Final[Mapping[Source, HookDialect]] = MappingProxyType(
    {Source.GITHUB: github_hooks, Source.GITLAB: gitlab_hooks}
)
"""Forges that remember their deliveries."""
_NOT_FOR_US: Final = frozenset({401, 403})
MOST_AT_ONCE: Final = 50
"""The most deliveries of one hook to ask for in one comparison; the rest follow in the next one."""


@dataclass(slots=True)
class DeliveryComparison:
    """A comparison of the deliveries of one source's hooks that call us."""

    source: WebhookSource
    dialect: HookDialect
    session: ReconcileSession
    findings: ReconcileFindings
    since: float
    """Older attempts are ignored, where the forge gives times."""
    everything: bool
    """Search also the attempts that were searched before."""

    async def compare(self, repositories: Sequence[str]) -> None:
        """Search every hook that may report these repositories once."""
        if self.session.remote.access.app is not None and await self._by_app():
            return
        searched: dict[str, bool] = {}
        for repository in repositories:
            self.session.report_progress(f"{self.source.name}: {repository}")
            self.findings.repositories += 1
            refusals: list[str] = []
            for owner in self.dialect.hook_owners(repository):
                if owner.path not in searched:
                    searched[owner.path] = await self._owner(owner, refusals)
            if not refusals and not any(
                searched[owner.path] for owner in self.dialect.hook_owners(repository)
            ):
                refusals.append(
                    f"no webhook that the token may see calls .../webhooks/{self.source.name} for it"
                )
            if not any(searched[owner.path] for owner in self.dialect.hook_owners(repository)):
                self._trouble(repository, "; ".join(refusals))

    async def _by_app(self) -> bool:
        """Whether the GitHub App itself calls us, which it then does for all repositories."""
        hook = await self.session.ask(github_hooks.find_app_hook())
        if not isinstance(hook, CallDone):
            self._trouble("the GitHub App", str(Unanswered(hook)))
            return False
        if not calls_us(hook.value, self.source.name):
            return False
        self.session.report_progress(f"{self.source.name}: the GitHub App")
        self.findings.repositories += 1
        await self._hook(hook.value)
        return True

    async def _owner(self, owner: HookOwner, refusals: list[str]) -> bool:
        """Whether a hook of this owner calls us.

        A shared owner that refuses us is not reported.
        """
        try:
            hooks = await self.session.all_items(self.dialect.find_hooks(owner))
        except Unanswered as error:
            if not (owner.shared and error.is_refusal):
                refusals.append(f"its webhooks: {error}")
            return False
        own_hooks = [hook for hook in hooks if calls_us(hook, self.source.name)]
        for hook in own_hooks:
            await self._hook(hook)
        return bool(own_hooks)

    async def _hook(self, hook: Hook) -> None:
        tables, name, began = self.session.tables, self.source.name, self.session.clock()
        cursor = None if self.everything else await tables.cursor(name, hook.path)
        attempts: list[Attempt] = []
        try:
            async for page in self.session.pages(self.dialect.find_attempts(hook)):
                fresh = [each for each in page.items if not is_past(each, since=self.since, cursor=cursor)]
                attempts += fresh
                if len(fresh) < len(page.items):
                    break
        except Unanswered as error:
            self._trouble(hook.owner.name, f"the deliveries of its webhook: {error}")
            return
        is_done = await self._send_lost(hook, attempts)
        reached = next_cursor(attempts, began=began, cursor=cursor)
        if is_done and reached is not None and not self.session.dry_run:
            await tables.store_cursor(name, hook.path, reached)

    async def _send_lost(self, hook: Hook, attempts: Sequence[Attempt]) -> bool:
        """Have lost deliveries sent again; return whether all have arrived or are given up."""
        lost = failed(attempts)
        ids = [attempt.delivery_id for attempt in lost]
        arrived = await self.session.tables.arrived(self.source.name, ids)
        resends = await self.session.tables.resends(self.source.name, ids)
        due: list[tuple[Attempt, int]] = []
        waiting = 0
        for attempt in lost:
            before = resends.get(attempt.delivery_id)
            match verdict(arrived=attempt.delivery_id in arrived, resends=before, now=self.session.clock()):
                case ResendVerdict.ARRIVED:
                    pass
                case ResendVerdict.GIVEN_UP:
                    self.findings.given_up.append(attempt.delivery_id)
                case ResendVerdict.WAIT:
                    waiting += 1
                case ResendVerdict.SEND:
                    due.append((attempt, 1 + (before.times if before else 0)))
        self.findings.waiting += waiting
        await self._send_all(hook, due[:MOST_AT_ONCE])
        return not due and not waiting

    async def _send_all(self, hook: Hook, due: Sequence[tuple[Attempt, int]]) -> None:
        """Request each delivery again, until the forge refuses for a reason that concerns all."""
        for number, (attempt, times) in enumerate(due):
            if not self.session.dry_run:
                if number and self.dialect.SPACING_SECONDS:
                    await self.session.pause(self.dialect.SPACING_SECONDS, "the forge sends no faster")
                answer = await self._send(hook, attempt, times)
                if not isinstance(answer, CallDone):
                    words = f"delivery {attempt.delivery_id} is not sent again: {Unanswered(answer)}"
                    self._trouble(hook.owner.name, words)
                    if isinstance(answer, CallPostponed) or answer.status in _NOT_FOR_US:
                        return
                    continue
            self.findings.sent.append(
                ResentDelivery(
                    place=hook.owner.name,
                    delivery_id=attempt.delivery_id,
                    event=attempt.event,
                    failure=attempt.why,
                    times=times,
                )
            )

    async def _send(
        self, hook: Hook, attempt: Attempt, times: int
    ) -> CallDone[None] | CallPostponed | CallRefused:
        answer = await self.session.ask(self.dialect.send_again(hook, attempt))
        if isinstance(answer, CallDone) or (isinstance(answer, CallPostponed) and answer.perhaps_done):
            await self.session.tables.note_resend(self.source.name, attempt.delivery_id, self.session.clock())
        if isinstance(answer, CallDone):
            log.info(
                LogEvent.REDELIVERY_REQUESTED,
                source=self.source.name,
                place=hook.owner.name,
                delivery_id=attempt.delivery_id,
                event_name=attempt.event,
                detail=attempt.why,
                times=times,
            )
        return answer

    def _trouble(self, place: str, detail: str) -> None:
        self.findings.troubles.append(ReconcileProblem(place=place, detail=detail))
