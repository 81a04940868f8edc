"""Gitea and Forgejo: branch heads and open pull requests are compared with what we know; what was missed is kept."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from solstice_forge.decisions.plan import PUSH
from solstice_forge.decisions.sources import Source
from solstice_forge.decisions.stored_delivery import RULED_OUT
from solstice_forge.forges.events import Ignored, Malformed
from solstice_forge.inbox import KeptInbox
from solstice_forge.inbox.reconcile_state import Head, Known
from solstice_forge.log_events import LogEvent
from solstice_forge.reconcile.calls import Asking, Unanswered
from solstice_forge.reconcile.missed_heads import (
    Found,
    Judged,
    changed,
    head_of,
    judge,
    kinds_of,
    made_up,
    named_repositories,
    pushed,
)
from solstice_forge.reconcile.report import Findings, Made, Trouble
from solstice_forge.remote.gitea_heads import find_branches, find_changes, find_repository
from solstice_forge.remote.protocol import Done

log = structlog.get_logger("solstice_forge.reconcile.compare_heads")

SETTLE_SECONDS: Final = 10.0
"""A webhook may be under way: the forges give up after five seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The heads of one kind of one repository at the forge, and which of them nobody told us of."""

    repository: str
    kind: str
    at: float
    heads: Mapping[str, str]
    missed: Sequence[Found]


@dataclass(slots=True)
class Comparison:
    """Compares the repositories of one source."""

    source: Source
    sources: Mapping[str, Source]
    """All there are: the log is read for all of them at once."""
    inbox: KeptInbox
    asking: Asking
    findings: Findings

    async def compare(self, repositories: Sequence[str], named: Collection[str]) -> None:
        """Repository by repository; what was missed is looked at once more before it is kept."""
        named = {*named, *named_repositories(self.source.rules)}
        seen: list[Seen] = []
        for repository in repositories:
            self.asking.tell(f"{self.source.name}: {repository}")
            try:
                seen += await self._repository(repository, is_named=repository in named)
            except Unanswered as error:
                self.findings.troubles.append(Trouble(place=repository, detail=str(error)))
            else:
                self.findings.repositories += 1
        if any(each.missed for each in seen) and not self.asking.dry_run:
            await self.asking.pause(SETTLE_SECONDS, "the webhooks of what is new may be under way")
            await learn(self.inbox, self.sources, self.asking.clock())
        for each in seen:
            await self._settle(each)

    async def _repository(self, name: str, *, is_named: bool) -> list[Seen]:
        known = await self.asking.tables.known(self.source.name, name)
        kinds = kinds_of(known, is_named=is_named)
        if not kinds:
            return []
        at = self.asking.clock()
        answer = await self.asking.ask(find_repository(name))
        if not isinstance(answer, Done):
            raise Unanswered(answer)
        repository = answer.value
        seen: list[Seen] = []
        for kind in kinds:
            if kind == PUSH:
                branches = await self.asking.whole(find_branches(name))
                found = [pushed(self.source, repository, each, known) for each in branches]
            else:
                changes = await self.asking.whole(find_changes(name)) if repository.has_changes else []
                found = [changed(self.source, repository, each, known) for each in changes]
            seen.append(await self._judged(name, kind, at, found, known))
        return seen

    async def _judged(self, name: str, kind: str, at: float, found: Sequence[Found], known: Known) -> Seen:
        told = await self._told(found)
        heads: dict[str, str] = {}
        missed: list[Found] = []
        for one in found:
            head = one.head
            if head is None:
                # A name that git allows and we do not, say: nothing that could be built.
                continue
            heads[head.ref] = head.commit_sha
            match judge(head, known, told=head in told):
                case Judged.KNOWN:
                    pass
                case Judged.BASELINE:
                    self.findings.baseline += 1
                case Judged.MISSED:
                    missed.append(one)
        return Seen(repository=name, kind=kind, at=at, heads=heads, missed=missed)

    async def _settle(self, seen: Seen) -> None:
        """Keep what is still missed, and remember the rest."""
        known = await self.asking.tables.known(self.source.name, seen.repository)
        told = await self._told(seen.missed)
        for found in seen.missed:
            head = found.head
            if head is not None and judge(head, known, told=head in told) is not Judged.KNOWN:
                await self._make(seen.repository, head, found)
        if not self.asking.dry_run:
            moved = {ref: sha for ref, sha in seen.heads.items() if known.heads.get(ref) != sha}
            await self.asking.tables.remember(self.source.name, seen.repository, seen.kind, moved, seen.at)

    async def _make(self, repository: str, head: Head, found: Found) -> None:
        await self.asking.still_ours()
        delivery = made_up(found, self.source, now=self.asking.clock())
        if isinstance(delivery, Malformed):
            self.findings.troubles.append(
                Trouble(place=repository, detail=f"{head.ref} cannot be built: {delivery.detail}")
            )
            return
        if isinstance(delivery, Ignored):
            made = _made(repository, head, decision="ignored", reason=delivery.reason.value)
        elif self.asking.dry_run:
            made = _made(repository, head, decision="accepted", reason=delivery.reason)
        else:
            kept = await self.inbox.keep(delivery)
            made = Made(
                repository=repository,
                ref=head.ref,
                commit_sha=head.commit_sha,
                decision=kept.decision.value,
                reason=kept.reason,
                delivery_id=kept.delivery_id,
                request_ids=kept.request_ids,
            )
            log.info(
                LogEvent.RECONCILE_MADE,
                source=self.source.name,
                repo_full_name=repository,
                ref=head.ref,
                commit_sha=head.commit_sha,
                delivery_id=kept.delivery_id,
                decision=kept.decision.value,
                reason=kept.reason,
                request_ids=kept.request_ids,
            )
        self.findings.made.append(made)

    async def _told(self, found: Sequence[Found]) -> frozenset[Head]:
        """The heads of which a delivery told."""
        keys = {one.head: one.keys(self.source) for one in found if one.head is not None}
        told = await self.asking.tables.told([key for each in keys.values() for key in each])
        return frozenset(head for head, of_head in keys.items() if not told.isdisjoint(of_head))


async def learn(inbox: KeptInbox, sources: Mapping[str, Source], now: float) -> None:
    """Have the inbox take in what its log says of repositories and their heads."""

    def read(source_name: str, event_name: str, body: bytes) -> Head | None:
        source = sources.get(source_name)
        return None if source is None else head_of(source.forge.parse(event_name, body))

    await inbox.reconciling.learn(now, {reason.value for reason in RULED_OUT}, read)


def _made(repository: str, head: Head, *, decision: str, reason: str) -> Made:
    return Made(
        repository=repository, ref=head.ref, commit_sha=head.commit_sha, decision=decision, reason=reason
    )
