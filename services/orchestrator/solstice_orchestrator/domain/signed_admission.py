"""Decode and check a delivery that a known key must have signed. Pure."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Generic, NamedTuple, TypeVar

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.broker.protocol import Delivery
from solstice_common.messages import JobCancelV1, JobRequestV1, Priority, Source
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_common.signing.jws import BEFORE_PATH, read_signature, signed_tree
from solstice_common.signing.keys import Right, VerifyKey
from solstice_common.signing.merkle import ProvenTree
from solstice_common.signing.verification import outlived, overstep, signer_of
from solstice_common.values.times import format_seconds
from solstice_orchestrator.domain.admission import examine, examine_cancel
from solstice_orchestrator.domain.trust import is_trusted

M = TypeVar("M", JobRequestV1, JobCancelV1)

_MOST_ALLOWED: Final = 1024
_TO_THE_DAY: Final = 10
"""Characters of a timestamp that say its day."""
_ABOVE_DEFAULT: Final = frozenset({Priority.CRITICAL, Priority.HIGH})


class Verified(NamedTuple, Generic[M]):
    """A message, and the name of the key that signed it and may sign it."""

    message: M
    key_name: str


def rights_for(request: JobRequestV1, v1_trust: AbstractSet[Source]) -> frozenset[Right]:
    """Return the rights that the request's key needs for the request's fields.

    Trust from any rule counts: also that of a request without `trusted` whose source V1_TRUST lists.
    """
    rights = []
    if is_trusted(request, v1_trust):
        rights.append(Right.TRUSTED)
    if request.priority in _ABOVE_DEFAULT:
        rights.append(Right.PRIORITY)
    if request.approves is True:
        rights.append(Right.APPROVALS)
    return frozenset(rights)


def examine_signed(
    delivery: Delivery,
    keys: Mapping[str, VerifyKey],
    *,
    v1_trust: AbstractSet[Source],
    max_age_seconds: float | None,
    now: float,
) -> Verified[JobRequestV1] | Refuse:
    """Decode a signed request, or refuse it for good; `now` in seconds since the epoch."""
    key = _signer(delivery, JobRequestV1.VERSION, keys)
    if isinstance(key, Refuse):
        return key
    request = examine(delivery.body, now)
    if isinstance(request, Refuse):
        return request
    refusal = overstep(key, request, rights_for(request, v1_trust)) or outlived(
        request, now=now, max_age_seconds=max_age_seconds
    )
    return refusal or Verified(request, key.name)


class SignedExaminer:
    """`examine_signed` for one delivery after the other, with the same answers.

    Messages of a group carry one signature, and most requests say what many before them said. Such a request is taken
    without asking again what is known; every other one, and each refusal, is left to `examine_signed`.
    """

    def __init__(
        self,
        keys: Mapping[str, VerifyKey],
        *,
        v1_trust: AbstractSet[Source],
        max_age_seconds: float | None,
        signed_by: Counter[str],
    ) -> None:
        """`signed_by` counts the taken requests by the name of their key."""
        self.keys = keys
        self.signed_by = signed_by
        self._v1_trust = v1_trust
        self._max_age_seconds = max_age_seconds
        self._before_path = BEFORE_PATH
        """The JWS of the tree and BEFORE_PATH."""
        self._key_name = ""
        self._tree: ProvenTree | None = None
        self._allowed: set[tuple[object, ...]] = set()
        """What requests of a key said that they may say."""
        self._now = 0.0
        self._last_old_day = ""
        """`2026-01-31`: no request of a later day is too old."""

    def examine(self, delivery: Delivery, now: float) -> JobRequestV1 | Refuse:
        """Decode a signed request, or refuse it for good; `now` in seconds since the epoch."""
        body, text = delivery.body, delivery.headers.get(SIGNATURE_HEADER)
        if not isinstance(text, str):
            return self._alone(delivery, now)
        if not text.startswith(self._before_path):
            self._turn_to(text)
        if now != self._now:
            self._now = now
            oldest = 0.0 if self._max_age_seconds is None else now - self._max_age_seconds
            self._last_old_day = format_seconds(max(0.0, oldest))[:_TO_THE_DAY]
        if (
            self._tree is None
            or len(body) > MAX_MESSAGE_BYTES
            or not self._tree.proves(body, text[len(self._before_path) :])
        ):
            return self._alone(delivery, now)
        request = examine(body, now)
        if (
            isinstance(request, Refuse)
            or _claims_of(self._key_name, request) not in self._allowed
            or request.submitted_at[:_TO_THE_DAY] <= self._last_old_day
        ):
            return self._alone(delivery, now)
        self.signed_by[self._key_name] += 1
        return request

    def _turn_to(self, text: str) -> None:
        """Learn which tree a text's signature is of, when it is a tree of requests."""
        # No signature begins so.
        self._before_path, self._tree = BEFORE_PATH, None
        signature = read_signature(text)
        key = None if signature is None else self.keys.get(signature.key_name)
        if signature is None or key is None or signature.version != JobRequestV1.VERSION:
            return
        if signature.path is not None:
            self._before_path, self._key_name = signature.jws + BEFORE_PATH, key.name
            self._tree = signed_tree(signature.jws, key)

    def _alone(self, delivery: Delivery, now: float) -> JobRequestV1 | Refuse:
        verified = examine_signed(
            delivery, self.keys, v1_trust=self._v1_trust, max_age_seconds=self._max_age_seconds, now=now
        )
        if isinstance(verified, Refuse):
            return verified
        # Whether a request without `trusted` is trusted is no matter of the remembered fields alone.
        if verified.message.trusted is not None:
            if len(self._allowed) >= _MOST_ALLOWED:
                self._allowed.clear()
            self._allowed.add(_claims_of(verified.key_name, verified.message))
        self.signed_by[verified.key_name] += 1
        return verified.message


def _claims_of(key_name: str, request: JobRequestV1) -> tuple[object, ...]:
    """Return all of a request that decides whether its key may sign it."""
    return (
        key_name,
        request.source,
        request.repo_url,
        request.repo_full_name,
        request.trusted,
        request.priority,
        request.approves,
    )


def examine_signed_cancel(
    delivery: Delivery, keys: Mapping[str, VerifyKey]
) -> Verified[JobCancelV1] | Refuse:
    """Decode a signed cancel request, or refuse it for good."""
    key = _signer(delivery, JobCancelV1.VERSION, keys)
    if isinstance(key, Refuse):
        return key
    cancel = examine_cancel(delivery.body)
    if isinstance(cancel, Refuse):
        return cancel
    return overstep(key, cancel, {Right.CANCELS}) or Verified(cancel, key.name)


def _signer(delivery: Delivery, version: str, keys: Mapping[str, VerifyKey]) -> VerifyKey | Refuse:
    """Return the signer; an oversized body is refused before anything is computed from it."""
    if len(delivery.body) > MAX_MESSAGE_BYTES:
        return Refuse(
            reason="oversize",
            detail=f"{len(delivery.body)} bytes, at most {MAX_MESSAGE_BYTES} are allowed",
        )
    return signer_of(delivery, version, keys)
