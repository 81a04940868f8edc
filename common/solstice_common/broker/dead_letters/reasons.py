"""What each reason of a dead letter means, and what to do about it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The meaning of a reason, and what a person should do about it."""

    meaning: str
    remedy: str


_FIX_SENDER: Final = "Fix its sender and have it sent again; or export it, fix its body, import and replay it. Then drop this one."
_UPGRADE: Final = "Upgrade the service that refused it, then replay it."
_FIX_KEY: Final = "Correct the keys (VERIFY_KEYS, SIGNING_KEYS), then replay it: it keeps its signature."
_NOT_GENUINE: Final = (
    "Find out who published it. Replaying it has no effect: request the build again, and drop it."
)
_RERUN: Final = "Fix the cause and rerun the run. Then drop this dead letter: its request is a run already."
_READ_DETAIL: Final = "Read the forge's answer in the detail, fix what it names, then replay it."
_WAITED: Final = "Replay it once the service that reads the queue is well again."

ADVICE: Final[Mapping[str, Advice]] = MappingProxyType(
    {
        # A service could not read it.
        "not_utf8": Advice(meaning="Its body is not UTF-8.", remedy=_FIX_SENDER),
        "not_json": Advice(meaning="Its body is not JSON.", remedy=_FIX_SENDER),
        "not_an_object": Advice(meaning="Its body is JSON, but no object.", remedy=_FIX_SENDER),
        "unreadable_head": Advice(
            meaning="Its head is no head of NATS, so its properties were left out.", remedy=_FIX_SENDER
        ),
        "oversize": Advice(meaning="It is larger than a message may be.", remedy=_FIX_SENDER),
        "invalid_field": Advice(
            meaning="A field is missing or wrong; the detail names it.", remedy=_FIX_SENDER
        ),
        "unknown_version": Advice(
            meaning="Its schema_version is not the one that this service reads.",
            remedy="Upgrade the service that is behind, then replay it.",
        ),
        "not_before_too_far": Advice(
            meaning="It asks for a start further ahead than the orchestrator allows.",
            remedy="Request it again with an earlier start, and drop it.",
        ),
        "internal_error": Advice(
            meaning="The service that read it made a mistake; its log has the traceback.", remedy=_UPGRADE
        ),
        # Its signature is not valid here.
        "unsigned": Advice(meaning="It is not signed, and VERIFY_KEYS asks for it.", remedy=_NOT_GENUINE),
        "malformed_signature": Advice(
            meaning="Its header x-solstice-signature holds no valid signature.", remedy=_NOT_GENUINE
        ),
        "unknown_key": Advice(
            meaning="VERIFY_KEYS does not hold the key that signed it; it may be revoked.", remedy=_FIX_KEY
        ),
        "wrong_type": Advice(meaning="It was signed as another kind of message.", remedy=_NOT_GENUINE),
        "wrong_signature": Advice(
            meaning="It was changed after it was signed, or another key of that name signed it.",
            remedy=_NOT_GENUINE,
        ),
        "outside_scope": Advice(meaning="Its key is not for that source or repository.", remedy=_FIX_KEY),
        "missing_right": Advice(
            meaning="It asks for what its key has no right to (trust, a priority, a cancellation).",
            remedy=_FIX_KEY,
        ),
        "too_old": Advice(
            meaning="It was made longer ago than runs are kept, so it could be built twice.",
            remedy="Request the build again, and drop it.",
        ),
        # The infrastructure spoiled every attempt at its run.
        "agent_lost": Advice(meaning="The orchestrators that ran its job disappeared.", remedy=_RERUN),
        "lease_expired": Advice(
            meaning="The orchestrators that ran its job stopped renewing its lease.", remedy=_RERUN
        ),
        "provision_failed": Advice(meaning="The place to run its job could not be prepared.", remedy=_RERUN),
        "checkout_failed": Advice(meaning="Its commit could not be fetched.", remedy=_RERUN),
        "artifact_unavailable": Advice(
            meaning="The archive of an artifact that its job needs was not there, or damaged.",
            remedy="Look after ARTIFACT_DIRECTORY and rerun all of the run. Then drop this dead letter.",
        ),
        "executor_failed": Advice(meaning="The executor broke on its job.", remedy=_RERUN),
        "machine_failed": Advice(meaning="The machine lacked disk, memory, processes or git.", remedy=_RERUN),
        "host_away": Advice(meaning="Its git host did not answer.", remedy=_RERUN),
        # A forge will never take this status.
        "not_found": Advice(
            meaning="The forge knows no such repository or commit (404).",
            remedy="Check the access of the source's token. Drop it if the repository or commit is gone; else replay it.",
        ),
        "forbidden": Advice(
            meaning="The forge does not let the source's token do this (403).",
            remedy="Give the token the right to set statuses, then replay it.",
        ),
        "unprocessable": Advice(meaning="The forge cannot use this status (422).", remedy=_READ_DETAIL),
        "too_many_statuses": Advice(
            meaning="The commit has as many statuses of this context as the forge takes.",
            remedy="Drop it: the forge takes no more of this commit.",
        ),
        "refused": Advice(meaning="The forge refused it.", remedy=_READ_DETAIL),
        "no_credentials": Advice(
            meaning="Its source has no token, or its App no key, that can be used.",
            remedy="Give the source a token, then replay it.",
        ),
        "forge_unavailable": Advice(
            meaning="The forge was away for FORGE_GIVE_UP_HOURS.",
            remedy="Replay it once the forge answers: the newest status of each context is sent.",
        ),
        "unknown_source": Advice(
            meaning="forge-integration has no source of that name.",
            remedy="Add the source to its file and replay it, or drop it.",
        ),
        "no_repository": Advice(
            meaning="Its repository's URL names no repository of a forge.",
            remedy="Drop it: there is no forge to report it to.",
        ),
        # The broker gave up delivering it.
        "too_many_deliveries": Advice(
            meaning="It was delivered again and again, and never settled: its readers died.",
            remedy="Look for what ended them in their logs, fix it, then replay it.",
        ),
        "delivery_limit": Advice(
            meaning="RabbitMQ delivered it as often as its limit allows: its readers died.",
            remedy="Look for what ended them in their logs, fix it, then replay it.",
        ),
        "rejected": Advice(
            meaning="A service refused it and could not publish it with its reason.",
            remedy="Look for delivery.dead_letter_failed in the log, then replay it.",
        ),
        "expired": Advice(meaning="It waited longer than a policy of RabbitMQ lets it.", remedy=_WAITED),
        "maxlen": Advice(
            meaning="Its queue was longer than a policy of RabbitMQ lets it be.", remedy=_WAITED
        ),
        "unknown": Advice(
            meaning="Neither a service nor the broker gave a reason.",
            remedy="Read its headers and body; replay it, or drop it.",
        ),
    }
)
OTHER: Final = Advice(
    meaning="A service of another version gave this reason.",
    remedy="Read its detail, headers and body; fix the cause and replay it, or drop it.",
)


def advice(reason: str) -> Advice:
    """Return what a reason means and what to do.

    Never fails: any publisher can write this header.
    """
    return ADVICE.get(reason, OTHER)
