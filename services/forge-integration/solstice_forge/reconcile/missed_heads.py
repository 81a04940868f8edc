"""Decides which heads of Gitea and Forgejo were missed, and makes their deliveries. Pure.

A missed head becomes the payload of the webhook that should have come, so that rules, approval, `[skip ci]` and the
content key are those of any other delivery: if the real one comes late, it is a copy.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, Final

import orjson
from msgspec.structs import replace

from solstice_forge.decisions.plan import PlanOptions, understand
from solstice_forge.decisions.requests import CHANGE_REQUEST, PUSH, content_key
from solstice_forge.decisions.rules import Rule
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.decisions.stored_delivery import new_delivery
from solstice_forge.forges.events import ChangeRequest, Event, Ignored, Malformed, Push
from solstice_forge.forges.gitea_family import BUILD_ACTIONS
from solstice_forge.inbox.protocol import NewDelivery
from solstice_forge.inbox.reconcile_state import KnownRepository, RefHead
from solstice_forge.remote.gitea_heads import GiteaBranch, GiteaRepository, OpenChange

REASON: Final = "reconciled"
KEY: Final = "reconcile"
"""The prefix of such a delivery's id: `reconcile:CONTENT KEY`."""
KINDS: Final = (PUSH, CHANGE_REQUEST)
"""The kinds that are compared: branches and open pull requests, but not tags."""
CHANGES: Final = "refs/pull/"
_NO_COMMIT: Final = "0"
_GLOB_SIGNS: Final = frozenset("*?[")


class HeadVerdict(StrEnum):
    """The verdict about one head."""

    KNOWN = "known"
    BASELINE = "baseline"
    """It existed before the first comparison: remembered, not built."""
    MISSED = "missed"


def judge(head: RefHead, known: KnownRepository, *, delivered: bool) -> HeadVerdict:
    """Return the verdict about the forge's head.

    `delivered`: a delivery had this content.
    """
    here = known.heads.get(head.ref)
    if delivered or here == head.commit_sha:
        return HeadVerdict.KNOWN
    if here is None and head.kind not in known.compared:
        return HeadVerdict.BASELINE
    return HeadVerdict.MISSED


def gone_refs(kind: str, present: Collection[str], known: KnownRepository) -> frozenset[str]:
    """Return the known refs of that kind that the forge has no longer.

    They are deleted branches, closed pull requests, and tags, which are never compared.
    """
    of_kind = {ref for ref in known.heads if ref.startswith(CHANGES) is (kind == CHANGE_REQUEST)}
    return frozenset(of_kind.difference(present))


def named_repositories(rules: Sequence[Rule]) -> frozenset[str]:
    """Return the repositories that rules name in full."""
    return frozenset(name for rule in rules for name in rule.repositories if not _GLOB_SIGNS & set(name))


def kinds_of(known: KnownRepository, *, is_named: bool) -> tuple[str, ...]:
    """Return which kinds to compare of a repository.

    If no rule names it, these are the kinds that its webhook has sent before: a hook without pull requests wants none
    built.
    """
    return tuple(kind for kind in KINDS if is_named or kind in known.kinds)


class ForgeHead:
    """One head at the forge, as its webhook would describe it."""

    def __init__(self, source: WebhookSource, kind: str, document: dict[str, Any]) -> None:
        self.payload = orjson.dumps(document)
        self.event_name = "push" if kind == PUSH else "pull_request"
        self.event = source.forge.parse(self.event_name, self.payload)
        """It is Ignored or Malformed if it cannot be built."""

    @property
    def head(self) -> RefHead | None:
        return head_of(self.event)

    def keys(self, source: WebhookSource) -> tuple[str, ...]:
        """Return its content keys, one for each action that a pull request's webhook may name."""
        match self.event:
            case Push():
                return (content_key(self.event, source, ""),)
            case ChangeRequest(action=own):
                actions = (own, *sorted(BUILD_ACTIONS - {own}))
                return tuple(content_key(replace(self.event, action=each), source, "") for each in actions)
            case _:
                return ()


def pushed(
    source: WebhookSource, repository: GiteaRepository, branch: GiteaBranch, known: KnownRepository
) -> ForgeHead:
    """Return the push that leads to a branch's current commit."""
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
    source: WebhookSource, repository: GiteaRepository, change: OpenChange, known: KnownRepository
) -> ForgeHead:
    """Return the pull request event that leads to its current head."""
    is_new = f"{CHANGES}{change.number}/head" not in known.heads
    document = {
        "action": "opened" if is_new else "synchronized",
        "number": change.number,
        "pull_request": change.document,
        "repository": _names(repository),
    }
    return ForgeHead(source, CHANGE_REQUEST, document)


def head_of(event: Event | Ignored | Malformed) -> RefHead | None:
    """Return where a push or a pull request says that its ref points."""
    if isinstance(event, Push | ChangeRequest):
        kind = PUSH if isinstance(event, Push) else CHANGE_REQUEST
        return RefHead(kind=kind, ref=event.ref, commit_sha=event.commit_sha)
    return None


def delivery_instead(
    head: ForgeHead, source: WebhookSource, *, now: float
) -> NewDelivery | Ignored | Malformed:
    """Return the delivery to store for the missed one, or why it is ignored.

    Ignored: the rules do not build it.
    """
    event = head.event
    if isinstance(event, Ignored | Malformed):
        return event
    key, *others = head.keys(source)
    options = PlanOptions(delivery_id=f"{KEY}:{key}", received_at=now)
    understood = understand(event, source, head.payload, options, event_name=head.event_name)
    if isinstance(understood, Malformed):
        return understood
    if isinstance(understood.event, Ignored):
        return understood.event
    delivery = new_delivery(source, {"content-type": "application/json"}, understood, now)
    what = "branch" if isinstance(event, Push) else "pull request"
    detail = f"its webhook was missed: the {what} was found when it was compared with the forge"
    return replace(delivery, reason=REASON, detail=detail, other_content_keys=tuple(others))


def _names(repository: GiteaRepository) -> dict[str, Any]:
    return {"full_name": repository.full_name, "clone_url": repository.clone_url}
