"""Decode and check a delivery that a known key must have signed. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.protocol import Delivery
from solstice_common.messages import JobCancelV1, JobRequestV1, Priority, Source
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_common.signing.keys import Right, VerifyKey
from solstice_common.signing.verification import outlived, overstep, signer_of
from solstice_orchestrator.domain.admission import examine, examine_cancel
from solstice_orchestrator.domain.trust import is_trusted

M = TypeVar("M", JobRequestV1, JobCancelV1)

_ABOVE_DEFAULT: Final = frozenset({Priority.CRITICAL, Priority.HIGH})


@dataclass(frozen=True, slots=True)
class Verified(Generic[M]):
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
