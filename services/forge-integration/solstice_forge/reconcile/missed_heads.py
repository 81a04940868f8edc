"""What Gitea and Forgejo could not tell us, by where branches and open pull requests are now. Pure.

What was missed is put into the words of the webhook that should have come, so that rules, approval, `[skip ci]` and the
content key are those of any other delivery: the real one, should it come late, is a copy of it.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import orjson
from msgspec.structs import replace

from solstice_forge.decisions.plan import CHANGE_REQUEST, PUSH, content_key, plan
from solstice_forge.decisions.rules import Rule
from solstice_forge.decisions.ruling import ruling
from solstice_forge.decisions.sources import Source
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.decisions.triage import UnderstoodDelivery
from solstice_forge.forges.events import ChangeRequest, Event, Ignored, Malformed, Push
from solstice_forge.forges.gitea_family import BUILD_ACTIONS
from solstice_forge.inbox.protocol import NewDelivery
from solstice_forge.inbox.reconcile_state import KnownRepository, RefHead
from solstice_forge.remote.gitea_heads import GiteaBranch, GiteaRepository, OpenChange

REASON: Final = "reconciled"
KEY: Final = "reconcile"
"""Begins the delivery id of what was made up for: `reconcile:CONTENT KEY`."""
KINDS: Final = (PUSH, CHANGE_REQUEST)
"""What is compared: branches, and open pull requests. Tags are not."""
_NO_COMMIT: Final = "0"
_GLOB_SIGNS: Final = frozenset("*?[")


class HeadVerdict(StrEnum):
    """About one head."""

    KNOWN = "known"
    BASELINE = "baseline"
    """It was there before we began to look: remembered, not built."""
    MISSED = "missed"


def judge(head: RefHead, known: KnownRepository, *, delivered: bool) -> HeadVerdict:
    """What the forge's head is to us; `delivered`: a delivery asked for this very content."""
    here = known.heads.get(head.ref)
    if delivered or here == head.commit_sha:
        return HeadVerdict.KNOWN
    if here is None and head.kind not in known.compared:
        return HeadVerdict.BASELINE
    return HeadVerdict.MISSED


def named_repositories(rules: Sequence[Rule]) -> frozenset[str]:
    """The repositories that rules name in full."""
    return frozenset(name for rule in rules for name in rule.repositories if not _GLOB_SIGNS & set(name))


def kinds_of(known: KnownRepository, *, is_named: bool) -> tuple[str, ...]:
    """What to compare of a repository.

    Of one that nobody named, what its webhook has told of before: who leaves pull requests out of it wants none built.
    """
    return tuple(kind for kind in KINDS if is_named or kind in known.kinds)


class ForgeHead:
    """One head at the forge, as the webhook would have told of it."""

    def __init__(self, source: Source, kind: str, document: dict[str, Any]) -> None:
        self.payload = orjson.dumps(document)
        self.event_name = "push" if kind == PUSH else "pull_request"
        self.event = source.forge.parse(self.event_name, self.payload)
        """Ignored or Malformed: nothing that could be built."""

    @property
    def head(self) -> RefHead | None:
        return head_of(self.event)

    def keys(self, source: Source) -> tuple[str, ...]:
        """Its content keys: nobody knows which action the webhook of a pull request would have named."""
        match self.event:
            case Push():
                return (content_key(self.event, source, ""),)
            case ChangeRequest(action=own):
                actions = (own, *sorted(BUILD_ACTIONS - {own}))
                return tuple(content_key(replace(self.event, action=each), source, "") for each in actions)
            case _:
                return ()


def pushed(
    source: Source, repository: GiteaRepository, branch: GiteaBranch, known: KnownRepository
) -> ForgeHead:
    """The push that leads to a branch as it is."""
    ref = f"refs/heads/{branch.name}"
    commit = {"id": branch.commit_sha, "message": branch.message}
    document = {
        "ref": ref,
        "before": known.heads.get(ref) or _NO_COMMIT * len(branch.commit_sha),
        "after": branch.commit_sha,
        "commits": [commit],
        "head_commit": commit,
        "repository": {**_names(repository), "default_branch": repository.default_branch},
    }
    return ForgeHead(source, PUSH, document)


def changed(
    source: Source, repository: GiteaRepository, change: OpenChange, known: KnownRepository
) -> ForgeHead:
    """The event of a pull request that leads to its head as it is."""
    is_new = f"refs/pull/{change.number}/head" not in known.heads
    document = {
        "action": "opened" if is_new else "synchronized",
        "number": change.number,
        "pull_request": change.document,
        "repository": _names(repository),
    }
    return ForgeHead(source, CHANGE_REQUEST, document)


def head_of(event: Event | Ignored | Malformed) -> RefHead | None:
    """Where a push or a pull request says that its ref points."""
    if isinstance(event, Push | ChangeRequest):
        kind = PUSH if isinstance(event, Push) else CHANGE_REQUEST
        return RefHead(kind=kind, ref=event.ref, commit_sha=event.commit_sha)
    return None


def delivery_instead(found: ForgeHead, source: Source, *, now: float) -> NewDelivery | Ignored | Malformed:
    """The delivery to keep instead of the one that was missed; Ignored: by the rules it is not built."""
    event = found.event
    if isinstance(event, Ignored | Malformed):
        return event
    ruled = ruling(event, source, found.payload)
    if isinstance(ruled, Ignored):
        return ruled
    key, *also = found.keys(source)
    delivery_id = f"{KEY}:{key}"
    wanted = plan(
        event, source=source, ruling=ruled, delivery_id=delivery_id, received_at=now, traceparent=None
    )
    if isinstance(wanted, Malformed):
        return wanted
    understood = UnderstoodDelivery(
        delivery_id=delivery_id,
        event_name=found.event_name,
        event=event,
        wanted=wanted,
        payload=found.payload,
    )
    delivery = new_delivery(source, {"content-type": "application/json"}, understood, now)
    what = "branch" if isinstance(event, Push) else "pull request"
    detail = f"no webhook told of it: the {what} was found like this when it was compared with the forge"
    return replace(delivery, reason=REASON, detail=detail, also=tuple(also))


def _names(repository: GiteaRepository) -> dict[str, Any]:
    return {"full_name": repository.full_name, "clone_url": repository.clone_url}
