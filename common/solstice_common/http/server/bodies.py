"""Limits the bytes of all request bodies in memory together."""

from collections.abc import Callable


class Bodies:
    """The arriving bodies; the largest is given up when all together exceed `limit`.

    So a body smaller than `limit` divided by the number of connections is never given up for one that still arrives.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._arriving: set[Body] = set()

    def body(self, give_up: Callable[[], None]) -> "Body":
        """Return a new body.

        `give_up` is called when the body is given up; its bytes no longer count then.
        """
        body = Body(self, give_up)
        self._arriving.add(body)
        return body

    def _grown(self, by: int) -> None:
        self.total += by
        while self.total > self.limit and self._arriving:
            largest = max(self._arriving, key=lambda body: body.size)
            largest.release()
            largest.give_up()

    def _ended(self, body: "Body") -> None:
        self._arriving.discard(body)

    def _freed(self, size: int) -> None:
        self.total -= size


class Body:
    """The bytes of one body, counted as they arrive."""

    __slots__ = ("_bodies", "give_up", "is_released", "size")

    def __init__(self, bodies: Bodies, give_up: Callable[[], None]) -> None:
        self._bodies = bodies
        self.give_up = give_up
        self.size = 0
        self.is_released = False

    def grow(self, by: int) -> None:
        """Count so many more bytes."""
        if not self.is_released:
            self.size += by
            self._bodies._grown(by)  # noqa: SLF001  the two are one

    def complete(self) -> None:
        """The body has arrived completely: it is no longer given up."""
        self._bodies._ended(self)  # noqa: SLF001

    def release(self) -> None:
        """Stop counting its bytes: they are no longer needed."""
        if not self.is_released:
            self.is_released = True
            self._bodies._ended(self)  # noqa: SLF001
            self._bodies._freed(self.size)  # noqa: SLF001
