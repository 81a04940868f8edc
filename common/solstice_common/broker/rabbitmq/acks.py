"""Tracks which delivery tags are settled, and writes the fewest ack frames."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import pamqp.frame
from pamqp import commands as spec


class AckAction(Enum):
    """The ways to settle a delivery at the broker."""

    ACK = "ack"
    REQUEUE = "requeue"
    """Reject the delivery by `basic.reject`: the queue's delivery limit counts it.

    Every version of RabbitMQ counts a reject; 4.3 no longer counts a `basic.nack`, so a message that can
    never be handled would be delivered again forever.
    """
    DROP = "drop"
    """Reject without requeue: the broker dead-letters it, where the queue has a dead-letter exchange."""


@dataclass(eq=False)
class AckLedger:
    """The tags of a channel, none of which is settled twice.

    No `multiple` settles a tag without a verdict.

    The broker answers an unknown tag by closing the channel, and then delivers everything on it again.
    """

    _highest: int = 0
    _lowest_open: int = 1
    """All lower tags are settled."""
    _settled: set[int] = field(default_factory=set)
    """Settled tags at or above `_lowest_open`."""

    def delivered(self, tag: int) -> None:
        """Note one more delivery: the broker numbers them from 1, without gaps."""
        self._highest = tag

    @property
    def open(self) -> int:
        """How many deliveries are not settled."""
        return self._highest - self._lowest_open + 1 - len(self._settled)

    def is_open(self, tag: int) -> bool:
        """Whether the tag was delivered and not settled yet."""
        return self._lowest_open <= tag <= self._highest and tag not in self._settled

    def settle(self, decisions: Mapping[int, AckAction]) -> list[spec.Basic.Ack | spec.Basic.Reject]:
        """Return the frames that carry out `decisions`, in order of writing.

        Tags that are settled already are left out.

        All acks up to the first undecided delivery become one frame with `multiple`; each other ack is a
        frame of its own.
        """
        if all(what is AckAction.ACK for what in decisions.values()) and self._is_next(decisions):
            # The usual case: every delivery is acked, in the order of arrival.
            self._lowest_open += len(decisions)
            return [spec.Basic.Ack(self._lowest_open - 1, multiple=len(decisions) > 1)]
        fresh = {tag: what for tag, what in sorted(decisions.items()) if self.is_open(tag)}
        frames: list[spec.Basic.Ack | spec.Basic.Reject] = [
            spec.Basic.Reject(tag, requeue=what is AckAction.REQUEUE)
            for tag, what in fresh.items()
            if what is not AckAction.ACK
        ]
        self._settled.update(fresh)
        while self._lowest_open in self._settled:
            self._settled.remove(self._lowest_open)
            self._lowest_open += 1
        acks = [tag for tag, what in fresh.items() if what is AckAction.ACK]
        prefix = [tag for tag in acks if tag < self._lowest_open]
        if prefix:
            # The last tag must still be open at the broker; rejected ones in between are settled already.
            frames.append(spec.Basic.Ack(prefix[-1], multiple=len(prefix) > 1))
        frames.extend(spec.Basic.Ack(tag) for tag in acks[len(prefix) :])
        return frames

    def _is_next(self, tags: Collection[int]) -> bool:
        """Whether these are the next open tags, without gaps, and no later tag is settled."""
        return (
            bool(tags)
            and not self._settled
            and min(tags) == self._lowest_open
            and max(tags) == self._lowest_open + len(tags) - 1 <= self._highest
        )

    def give_back(self) -> spec.Basic.Nack | None:
        """Return the frame that returns every open delivery to the queue; None without one.

        It is a `basic.nack`, since these messages are good: a version that distinguishes it from
        `basic.reject` does not count it.
        """
        if not self.open:
            return None
        last = next(tag for tag in range(self._highest, 0, -1) if self.is_open(tag))
        self._lowest_open = self._highest + 1
        self._settled.clear()
        return spec.Basic.Nack(last, multiple=True, requeue=True)


def encode(frames: Iterable[spec.Basic.Ack | spec.Basic.Reject | spec.Basic.Nack], channel: int) -> bytes:
    """Return the bytes of `frames` for one write."""
    return b"".join(pamqp.frame.marshal(frame, channel) for frame in frames)
