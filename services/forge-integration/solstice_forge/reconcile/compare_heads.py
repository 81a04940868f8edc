"""Compares heads of Gitea and Forgejo with known ones, and stores missed deliveries.

Heads are those of branches and of open pull requests.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from solstice_forge.decisions.requests import PUSH
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.decisions.stored_delivery import RULED_OUT
from solstice_forge.forges.events import Ignored, Malformed
from solstice_forge.inbox import InboxStore
from solstice_forge.inbox.reconcile_state import KnownRepository, RefHead
from solstice_forge.log_events import LogEvent
from solstice_forge.reconcile.calls import ReconcileSession, Unanswered
from solstice_forge.reconcile.compare_deliveries import HOOKS
from solstice_forge.reconcile.missed_heads import (
    ForgeHead,
    HeadVerdict,
    changed,
    delivery_instead,
    gone_refs,
    head_of,
    judge,
    kinds_of,
    named_repositories,
    pushed,
)
from solstice_forge.reconcile.report import MissedHead, ReconcileFindings, ReconcileProblem
from solstice_forge.remote.gitea_heads import find_branches, find_changes, find_repository
from solstice_forge.remote.protocol import CallDone

log = structlog.get_logger(__name__)

SETTLE_SECONDS: Final = 10.0
"""The wait for a webhook in transit: the forges give up after five seconds."""


GoneRefs = dict[tuple[str, str], frozenset[str]]
"""The refs of each repository and kind that the forge did not have in the last comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedHeads:
    """One repository's heads of one kind, and which of them we missed."""

    repository: str
    kind: str
    at: float
    heads: Mapping[str, str]
    missed: Sequence[ForgeHead]
    is_listed: bool
    """False where the repository has no pull requests now: what it had may come back."""


@dataclass(slots=True)
class HeadComparison:
    """A comparison of the repositories of one source."""

    source: WebhookSource
    sources: Mapping[str, WebhookSource]
    """All sources: the log is read for all of them at once."""
    inbox: InboxStore
    session: ReconcileSession
    findings: ReconcileFindings
    gone: GoneRefs

    async def compare(self, repositories: Sequence[str], named: Collection[str]) -> None:
        """Compare each repository; check missed heads once more before storing them."""
        named = {*named, *named_repositories(self.source.rules)}
        compared: list[ComparedHeads] = []
        for repository in repositories:
            self.session.report_progress(f"{self.source.name}: {repository}")
            try:
                compared += await self._repository(repository, is_named=repository in named)
            except Unanswered as error:
                self.findings.troubles.append(ReconcileProblem(place=repository, detail=str(error)))
            else:
                self.findings.repositories += 1
        if any(each.missed for each in compared) and not self.session.dry_run:
            await self.session.pause(SETTLE_SECONDS, "the webhooks of what is new may be under way")
            await learn(self.inbox, self.sources, self.session.clock())
        for each in compared:
            await self._store_missed(each)

    async def _repository(self, name: str, *, is_named: bool) -> list[ComparedHeads]:
        known = await self.session.tables.known(self.source.name, name)
        kinds = kinds_of(known, is_named=is_named)
        if not kinds:
            return []
        at = self.session.clock()
        answer = await self.session.ask(find_repository(name))
        if not isinstance(answer, CallDone):
            raise Unanswered(answer)
        repository = answer.value
        compared: list[ComparedHeads] = []
        for kind in kinds:
            is_listed = kind == PUSH or repository.has_changes
            if kind == PUSH:
                branches = await self.session.all_items(find_branches(name))
                heads = [pushed(self.source, repository, each, known) for each in branches]
            else:
                changes = await self.session.all_items(find_changes(name)) if is_listed else []
                heads = [changed(self.source, repository, each, known) for each in changes]
            compared.append(await self._compare(name, kind, at, heads, known, is_listed=is_listed))
        return compared

    async def _compare(
        self,
        name: str,
        kind: str,
        at: float,
        forge_heads: Sequence[ForgeHead],
        known: KnownRepository,
        *,
        is_listed: bool,
    ) -> ComparedHeads:
        delivered = await self._delivered(forge_heads)
        heads: dict[str, str] = {}
        missed: list[ForgeHead] = []
        for one in forge_heads:
            head = one.head
            if head is None:
                # For example a name that git allows and we do not: it cannot be built.
                continue
            heads[head.ref] = head.commit_sha
            match judge(head, known, delivered=head in delivered):
                case HeadVerdict.KNOWN:
                    pass
                case HeadVerdict.BASELINE:
                    self.findings.baseline += 1
                case HeadVerdict.MISSED:
                    missed.append(one)
        return ComparedHeads(
            repository=name, kind=kind, at=at, heads=heads, missed=missed, is_listed=is_listed
        )

    async def _store_missed(self, compared: ComparedHeads) -> None:
        """Store deliveries for heads that are still missed, and remember the others."""
        known = await self.session.tables.known(self.source.name, compared.repository)
        delivered = await self._delivered(compared.missed)
        for found in compared.missed:
            head = found.head
            if head is not None and judge(head, known, delivered=head in delivered) is not HeadVerdict.KNOWN:
                await self._keep_missed(compared.repository, head, found)
        if not self.session.dry_run:
            moved = {ref: sha for ref, sha in compared.heads.items() if known.heads.get(ref) != sha}
            await self.session.tables.remember(
                self.source.name, compared.repository, compared.kind, moved, compared.at
            )
            if compared.is_listed:
                await self._forget_gone(compared, known)

    async def _forget_gone(self, compared: ComparedHeads, known: KnownRepository) -> None:
        """Forget refs that were gone twice.

        While branches are deleted, one of another page can be missed once. If it were forgotten, the next comparison
        would build it.
        """
        place = (compared.repository, compared.kind)
        gone = gone_refs(compared.kind, compared.heads, known)
        if twice := gone & self.gone.get(place, frozenset()):
            await self.session.tables.forget_heads(self.source.name, compared.repository, twice, compared.at)
        self.gone[place] = gone - twice

    async def _keep_missed(self, repository: str, head: RefHead, forge_head: ForgeHead) -> None:
        await self.session.ensure_claimed()
        delivery = delivery_instead(forge_head, self.source, now=self.session.clock())
        if isinstance(delivery, Malformed):
            self.findings.troubles.append(
                ReconcileProblem(place=repository, detail=f"{head.ref} cannot be built: {delivery.detail}")
            )
            return
        if isinstance(delivery, Ignored):
            missed_head = _missed_head(repository, head, decision="ignored", reason=delivery.reason.value)
        elif self.session.dry_run:
            missed_head = _missed_head(repository, head, decision="accepted", reason=delivery.reason)
        else:
            result = await self.inbox.keep(delivery)
            missed_head = MissedHead(
                repository=repository,
                ref=head.ref,
                commit_sha=head.commit_sha,
                decision=result.decision.value,
                reason=result.reason,
                delivery_id=result.delivery_id,
                request_ids=result.request_ids,
            )
            log.info(
                LogEvent.UNREPORTED_HEAD_STORED,
                source=self.source.name,
                repo_full_name=repository,
                ref=head.ref,
                commit_sha=head.commit_sha,
                delivery_id=result.delivery_id,
                decision=result.decision.value,
                reason=result.reason,
                request_ids=result.request_ids,
            )
        self.findings.made.append(missed_head)

    async def _delivered(self, heads: Sequence[ForgeHead]) -> frozenset[RefHead]:
        """Return the heads of which a delivery came."""
        keys = {one.head: one.keys(self.source) for one in heads if one.head is not None}
        delivered = await self.session.tables.delivered([key for each in keys.values() for key in each])
        return frozenset(head for head, of_head in keys.items() if not delivered.isdisjoint(of_head))


async def learn(inbox: InboxStore, sources: Mapping[str, WebhookSource], now: float) -> None:
    """Have the inbox read repositories and heads from its log."""

    def read(source_name: str, event_name: str, body: bytes) -> RefHead | None:
        source = sources.get(source_name)
        return None if source is None else head_of(source.forge.parse(event_name, body))

    headless = [name for name, source in sources.items() if source.forge.SOURCE in HOOKS]
    await inbox.reconcile_state.learn(now, {reason.value for reason in RULED_OUT}, read, headless=headless)


def _missed_head(repository: str, head: RefHead, *, decision: str, reason: str) -> MissedHead:
    return MissedHead(
        repository=repository, ref=head.ref, commit_sha=head.commit_sha, decision=decision, reason=reason
    )
