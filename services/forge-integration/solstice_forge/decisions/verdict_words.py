"""Describes the outcome of a delivery in words, for terminal and page alike. Pure."""

from typing import Final
from urllib.parse import quote

from solstice_forge.inbox.log import DeliveryEntry
from solstice_forge.inbox.protocol import Decision

SENTENCES: Final = {
    "push": "A push: its newest commit is built.",
    "change_request": "A pull or merge request has new code: its head commit is built.",
    "comment": "A command in a comment.",
    "cancel": "A comment asks to end what runs or waits for the change request.",
    "rerun": "A person asked the forge to run a check again.",
    "release": "A release was published: its tag is built.",
    "dispatch": "A person asked for a branch or tag to be built.",
    "replay": "A person asked for a delivery to be built once more.",
    "reconciled": "Its webhook was missed: it was found by comparing with the forge.",
    "manual": "A program asked for it through the API.",
    "duplicate_delivery": "The forge sent this delivery before, under the same id.",
    "duplicate_content": "The same event came before, by another hook or under another id.",
    "ref_deleted": "A branch or tag was deleted: there is no commit to build.",
    "not_a_branch_or_tag": "What was pushed is neither a branch nor a tag.",
    "push_follows": "The forge sends a push for the same branch or tag, and that one is built.",
    "no_new_code": "The change request has no new commit.",
    "no_command": "The comment has no command, or is not on a change request.",
    "ping": "The forge asked whether the address works. It does.",
    "not_a_code_event": "This kind of event is not about code.",
    "no_rule": "The source has rules, and none is for this event of this repository.",
    "branch_not_built": "The rule for it names other branches.",
    "paths_not_built": "The rule for it names other paths than those that changed.",
    "fork_not_built": "The rule for it builds nothing that comes from a fork.",
    "skip_ci": "The commit's message asks not to be built.",
    "not_allowed": "Who wrote the command may not give it.",
    "change_closed": "The change request is closed or merged.",
    "not_at_forge": "The forge does not know what the delivery names.",
    "forge_refused": "The forge refused what the delivery lacks.",
    "no_access": "The forge would have to be asked, and the source has no URL or token for that.",
    "too_late": "The forge could not be asked in time.",
    "unusable": "The forge's answer cannot be made a request.",
}
"""What each reason means; a reason that is missing here is clear by itself."""
WITHOUT_RUN: Final = frozenset({"cancel"})
"""Reasons of accepted deliveries that do not become a run of their own."""


def sentence(entry: DeliveryEntry) -> str:
    """Say why the delivery was decided so."""
    return SENTENCES.get(entry.reason, entry.reason.replace("_", " "))


def fate(entry: DeliveryEntry) -> str:
    """Say what became of the request; empty when the delivery made none."""
    if entry.decision is not Decision.ACCEPTED:
        return ""
    match entry.published:
        case True:
            return "with the broker, for the orchestrators"
        case False:
            tries = (
                f"tried {entry.attempts} times: {entry.last_failure}" if entry.attempts else "not sent yet"
            )
            return f"waits for the broker ({tries})"
        case None:
            failure = f": {entry.last_failure}" if entry.last_failure else ""
            return f"waits for the forge to answer what it lacks{failure}"


def decision_style(entry: DeliveryEntry) -> str:
    """Return the decision's colour on a terminal."""
    if entry.decision is Decision.ACCEPTED:
        return "green" if entry.published else "yellow"
    return "dim"


def run_address(public_url: str, entry: DeliveryEntry) -> str | None:
    """Return where the orchestrators show the run, if their URL is configured."""
    if not public_url or not entry.request_ids or entry.reason in WITHOUT_RUN:
        return None
    return f"{public_url.rstrip('/')}/requests/{quote(entry.request_ids[0], safe='')}"
