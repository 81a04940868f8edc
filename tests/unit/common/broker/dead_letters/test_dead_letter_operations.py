"""Dead letters are looked at one by one, and put back without further copies."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from solstice_common.broker import DeadLetter, Published
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_operations import browse, drop, put_back
from solstice_common.broker.dead_letters.dead_letter_queue import (
    Enough,
    Handle,
    Progress,
    See,
    never_enough,
    no_progress,
    take_all,
)
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.broker.protocol import CONFIRMED

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def dead(body: bytes = b"", *, hours: int | None = None) -> DeadLetter:
    """A dead letter that was published so many hours ago; at an unknown time without."""
    return DeadLetter(queue="q", body=body, timestamp=None if hours is None else NOW - timedelta(hours=hours))


class QueueInMemory:
    """A queue and its only connection."""

    url = "memory:"
    name = "q"

    def __init__(self, *dead_letters: DeadLetter) -> None:
        self.dead_letters = list(dead_letters)
        self.groups: list[int] = []

    def queue(self, _name: str) -> "QueueInMemory":
        return self

    async def count(self) -> int:
        return len(self.dead_letters)

    async def in_use(self) -> int:
        return 0

    async def browse(self, limit: int, see: See, *, whole: bool = False) -> None:
        assert not whole
        for each in self.dead_letters[:limit]:
            see(each)

    async def take(self, handle: Handle, limit: int, *, enough: Enough = never_enough) -> int:
        removed = 0
        for each in self.dead_letters[:limit]:
            chosen = await handle([each])
            if each.id in chosen:
                self.dead_letters.remove(each)
                removed += 1
            if enough():
                break
        return removed

    # Nothing here purges.

    async def purge(self, on_progress: Progress = no_progress) -> int:
        raise NotImplementedError

    async def put_back(self, dead_letters: Sequence[DeadLetter]) -> Sequence[Published]:
        self.groups.append(len(dead_letters))
        self.dead_letters += dead_letters
        return [CONFIRMED] * len(dead_letters)


async def bodies(*dead_letters: DeadLetter) -> list[bytes]:
    def keep(found: DeadLetterFacts) -> bytes:
        return found.dead_letter.body

    return await browse(QueueInMemory(*dead_letters), ["q"], Selection(), keep)


async def test_copies_are_listed_once_and_the_longest_dead_first() -> None:
    young, old = dead(b"young", hours=1), dead(b"old", hours=2)
    assert await bodies(young, old, young) == [b"old", b"young"]


async def test_what_died_at_an_unknown_time_stands_before_all_others() -> None:
    assert await bodies(dead(b"known", hours=1), dead(b"unknown")) == [b"unknown", b"known"]


async def test_of_many_the_longest_dead_alone_are_collected_and_all_are_counted() -> None:
    collected, counted = list[bytes](), list[bytes]()

    def keep(found: DeadLetterFacts) -> bytes:
        collected.append(found.dead_letter.body)
        return found.dead_letter.body

    async def oldest(*dead_letters: DeadLetter) -> list[bytes]:
        collected.clear()
        counted.clear()
        return await browse(
            QueueInMemory(*dead_letters), ["q"], Selection(), keep, most=3,
            on_selected=lambda found: counted.append(found.dead_letter.body),
        )  # fmt: skip

    by_age = [dead(b"%d" % hours, hours=hours) for hours in range(500, 0, -1)]
    assert await oldest(*by_age, by_age[0], by_age[-1]) == [b"500", b"499", b"498"]
    assert (collected, len(counted)) == ([b"500", b"499", b"498"], 500)
    assert await oldest(*reversed(by_age)) == [b"500", b"499", b"498"]
    assert await oldest(*(dead(b"%d" % number, hours=1) for number in range(9))) == [b"0", b"1", b"2"]


async def test_what_is_there_is_not_put_back_and_large_ones_go_one_by_one() -> None:
    there, large = dead(b"there"), [dead(bytes([number]) * (3 << 20)) for number in range(3)]
    queue = QueueInMemory(there)
    added = await put_back(queue, [there, *large, large[0], dead(b"small")])
    assert (added.added, added.present, added.failed) == (4, 2, [])
    assert queue.groups == [1, 1, 2]
    assert await queue.count() == 5


async def test_reading_counts_what_is_read_of_all_queues() -> None:
    counted: list[int] = []
    queue = QueueInMemory(dead(b"1"), dead(b"2"))
    await browse(queue, ["q", "r"], Selection(reason="x"), DeadLetterFacts.brief, on_progress=counted.append)
    assert counted == [1, 2, 3, 4]


async def test_only_what_is_removed_counts_as_removed() -> None:
    those = [dead(b"1"), dead(b"2"), dead(b"3")]
    queue, counted = QueueInMemory(*those), list[tuple[int, int]]()

    def note(done: int) -> None:
        counted.append((done, len(queue.dead_letters)))

    assert await drop(queue, Selection(ids=[those[0].id, those[2].id]), on_progress=note) == [
        those[0].id,
        those[2].id,
    ]
    assert counted == [(0, 3), (1, 2), (1, 2), (2, 1)]
    counted.clear()
    assert await take_all(queue, note) == 1
    assert counted == [(0, 1), (1, 0)]
