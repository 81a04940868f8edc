"""Decides from which of several queues the next messages are taken. Pure.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each message of a queue takes a stretch of virtual time, shorter the
greater the queue's weight, and the message that may start first is taken. So queues that always have messages share by
their weights, one that was empty neither saves nor owes anything, and none starves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTimes:
    """What was taken so far, in virtual time."""

    now: int = 0
    """When the message that was taken last started."""
    ends: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """When the last message of each queue ends."""


def next_queues(
    times: VirtualTimes, weights: Mapping[str, int], waiting: Mapping[str, int], limit: int
) -> tuple[Sequence[str], VirtualTimes]:
    """Return the queues of the next messages, at most `limit`, and the times after them.

    `waiting` says how many messages of each queue are at hand; with one at hand, one is taken. Of queues that may be
    next, the one that `weights` names first is. While a queue has messages at hand, at most `weight / its weight + 1`
    messages of each other queue go before its next one.
    """
    cycle = lcm(*weights.values())
    left = {queue: waiting[queue] for queue in weights if waiting.get(queue)}
    now, ends = times.now, dict(times.ends)
    chosen: list[str] = []
    while left and len(chosen) < limit:
        starts = {queue: max(now, ends.get(queue, 0)) for queue in left}
        queue = min(starts, key=starts.__getitem__)
        now = starts[queue]
        ends[queue] = now + cycle // weights[queue]
        chosen.append(queue)
        left[queue] -= 1
        if not left[queue]:
            del left[queue]
    return chosen, VirtualTimes(now=now, ends=ends)
