"""Decides whether an allowed key has signed a delivery. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.broker.protocol import Delivery
from solstice_common.messages import JobCancelV1, JobRequestV1, Source
from solstice_common.signing.jws import SignatureReason, is_genuine, read_signature
from solstice_common.signing.keys import Right, VerifyKey
from solstice_common.values.repo_urls import name_of
from solstice_common.values.times import parse_timestamp

_TO_THE_SECOND: Final = 19
"""Characters of a timestamp before its fraction or offset."""


def signer_of(delivery: Delivery, version: str, keys: Mapping[str, VerifyKey]) -> VerifyKey | Refuse:
    """The key that signed the delivery as a message of this version, or its refusal.

    `keys` are those of VERIFY_KEYS, by name.
    """
    sent = delivery.header(SIGNATURE_HEADER)
    if sent is None:
        return _refused(
            SignatureReason.UNSIGNED,
            f"it has no header {SIGNATURE_HEADER}, which VERIFY_KEYS asks for: give its publisher SIGNING_KEYS",
        )
    signature = read_signature(sent)
    if signature is None:
        return _refused(
            SignatureReason.MALFORMED_SIGNATURE, f"its header {SIGNATURE_HEADER} holds no valid signature"
        )
    key = keys.get(signature.key_name)
    if key is None:
        return _refused(
            SignatureReason.UNKNOWN_KEY,
            f"it is signed by the key {signature.key_name!r}, which VERIFY_KEYS does not hold: was it revoked?",
        )
    if signature.version != version:
        return _refused(
            SignatureReason.WRONG_TYPE,
            f"the key {key.name!r} did not sign it as a {version}, but as another message",
        )
    if not is_genuine(signature, delivery.body, key):
        return _refused(
            SignatureReason.WRONG_SIGNATURE,
            f"it is not what the key {key.name!r} signed: it was changed, or another key of that name signed it",
        )
    return key


def overstep(
    key: VerifyKey, message: JobRequestV1 | JobCancelV1, needed: AbstractSet[Right]
) -> Refuse | None:
    """Return the refusal of a message that its key may not sign.

    None for an allowed one. `needed` are the rights that the message's fields need.
    """
    if not _in_scope(key, message.source, message.repo_url, message.repo_full_name):
        repository = name_of(message.repo_url)
        return _refused(
            SignatureReason.OUTSIDE_SCOPE,
            f"the key {key.name!r} is not for {message.source} and {message.repo_full_name or repository} at {repository}",
        )
    if not needed <= key.scope.rights:
        missing = sorted(needed - key.scope.rights)
        return _refused(
            SignatureReason.MISSING_RIGHT,
            f"it needs the right {', '.join(missing)}, which the key {key.name!r} does not have",
        )
    return None


# Few repositories are pushed to repeatedly. A file of keys that is read again makes new keys.
@lru_cache(maxsize=1024)
def _in_scope(key: VerifyKey, source: Source, repo_url: str, full_name: str | None) -> bool:
    return key.scope.covers(source, name_of(repo_url), full_name)


def outlived(request: JobRequestV1, *, now: float, max_age_seconds: float | None) -> Refuse | None:
    """Return the refusal of a request whose run the store may have forgotten.

    None for a younger request. Until then a repeated request is recognised. `now` in seconds since the epoch.
    """
    if max_age_seconds is None:
        return None
    oldest = max(0.0, now - max_age_seconds)
    # Of nearly every request the letters of its time tell it: to read the time takes ten times as long.
    if request.submitted_at[:_TO_THE_SECOND].upper() > _second(int(oldest)):
        return None
    if parse_timestamp(request.submitted_at).timestamp() >= oldest:
        return None
    return _refused(
        SignatureReason.TOO_OLD,
        f"it was submitted at {request.submitted_at}, longer ago than RETENTION_DAYS: a run of it may have been removed, "
        "and it could be built twice; request it again",
    )


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    """`2026-01-31T12:00:00`: such texts sort as their moments."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:_TO_THE_SECOND]


def _refused(reason: SignatureReason, detail: str) -> Refuse:
    return Refuse(reason=reason, detail=detail)
