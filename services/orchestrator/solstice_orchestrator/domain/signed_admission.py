"""Decode and check a delivery that a known key must have signed. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from functools import lru_cache
from itertools import compress
from typing import Final, Generic, NamedTuple, TypeVar

from solstice_common.broker.delivery import Refuse
from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.broker.protocol import Delivery
from solstice_common.messages import JobCancelV1, JobRequestV1, Priority, Source
from solstice_common.messages.canonical import MAX_MESSAGE_BYTES
from solstice_common.signing.jws import BEFORE_PATH, MAX_CHARACTERS, tree_under
from solstice_common.signing.keys import Right, VerifyKey
from solstice_common.signing.merkle import ProvenTree
from solstice_common.signing.verification import outlived, overstep, signer_of
from solstice_orchestrator.domain.admission import examine, examine_cancel
from solstice_orchestrator.domain.trust import is_trusted

M = TypeVar("M", JobRequestV1, JobCancelV1)

_MOST_ALLOWED: Final = 1024
_MOST_TREES: Final = 64
_TO_THE_DAY: Final = 10
"""Characters of a timestamp that say its day."""
_DAY_SECONDS: Final = 86_400
_ABOVE_DEFAULT: Final = frozenset({Priority.CRITICAL, Priority.HIGH})


class Verified(NamedTuple, Generic[M]):
    """A message, and the name of the key that signed it and may sign it."""

    message: M
    key_name: str


class _Group(NamedTuple):
    """The deliveries of a batch whose signatures have one JWS."""

    deliveries: list[Delivery]
    bodies: list[bytes]
    paths: list[str]


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
    """`examine_signed` for the deliveries of one batch after the other, with the same answers.

    Messages of a group carry one signature and mostly come together, and most requests say what many before them said.
    Such a request is taken without asking again what is known; every other one, and each refusal, is left to
    `examine_signed`.
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
        self._trees: dict[str, tuple[str, ProvenTree] | None] = {}
        """By the JWS of a group: its key's name, and its tree."""
        self._unlimited = frozenset(name for name, key in keys.items() if key.scope.is_unlimited)
        """The keys whose requests may say everything."""
        self._allowed: set[tuple[object, ...]] = set()
        """What requests of another key said that they may say."""

    def of_batch(
        self, deliveries: Sequence[Delivery], now: float
    ) -> Callable[[Delivery], JobRequestV1 | Refuse]:
        """Return what decodes each of these requests, or refuses it for good.

        `now` is in seconds since the epoch.
        """
        key_names = self._key_names(deliveries)
        oldest = 0.0 if self._max_age_seconds is None else max(0.0, now - self._max_age_seconds)
        last_old_day = _day(int(oldest // _DAY_SECONDS))
        unlimited, signed_by = self._unlimited, self.signed_by

        def examined(delivery: Delivery) -> JobRequestV1 | Refuse:
            key_name = key_names.get(id(delivery))
            if key_name is None:
                return self._alone(delivery, now)
            request = examine(delivery.body, now)
            if (
                isinstance(request, Refuse)
                or (key_name not in unlimited and _claims_of(key_name, request) not in self._allowed)
                or request.submitted_at[:_TO_THE_DAY] <= last_old_day
            ):
                return self._alone(delivery, now)
            signed_by[key_name] += 1
            return request

        return examined

    def _key_names(self, deliveries: Sequence[Delivery]) -> Mapping[int, str]:
        """Return whose key signed each delivery of a group, by the delivery's `id`.

        The messages of a tree are verified together.
        """
        key_names: dict[int, str] = {}
        for jws, group in _groups(deliveries).items():
            if (signed := self._tree(jws)) is not None:
                key_name, tree = signed
                proven = compress(group.deliveries, tree.proves_each(group.bodies, group.paths))
                key_names.update(dict.fromkeys(map(id, proven), key_name))
        return key_names

    def _tree(self, jws: str) -> tuple[str, ProvenTree] | None:
        if jws not in self._trees:
            if len(self._trees) >= _MOST_TREES:
                self._trees.clear()
            self._trees[jws] = tree_under(jws, JobRequestV1.VERSION, self.keys) if jws.isascii() else None
        return self._trees[jws]

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


def _groups(deliveries: Sequence[Delivery]) -> Mapping[str, _Group]:
    """Return the groups of these deliveries by their JWS.

    Deliveries in none are left out. It takes few steps for each delivery: most have the JWS of the one before them.
    """
    groups: dict[str, _Group] = {}
    texts = [delivery.header(SIGNATURE_HEADER) for delivery in deliveries]
    end, last = 0, len(texts)
    while end < last:
        start, end = end, end + 1
        text = texts[start]
        if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
            continue
        jws = text.partition(BEFORE_PATH)[0]
        beginning = jws + BEFORE_PATH
        while end < last and isinstance(text := texts[end], str) and text.startswith(beginning):
            end += 1
        bodies = [delivery.body for delivery in deliveries[start:end]]
        if max(map(len, bodies)) > MAX_MESSAGE_BYTES:
            continue
        group = groups.setdefault(jws, _Group([], [], []))
        group.deliveries.extend(deliveries[start:end])
        group.bodies.extend(bodies)
        group.paths.extend([str(text)[len(beginning) :] for text in texts[start:end]])
    return groups


@lru_cache(maxsize=4)
def _day(days: int) -> str:
    """Return `2026-01-31` of so many days since the epoch; such texts sort as their days."""
    return datetime.fromtimestamp(days * _DAY_SECONDS, UTC).date().isoformat()


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
