"""Attacks a service over loopback in one way, bounded in connections and time.

It runs as a process of its own.

Reads an `Attack` as JSON on stdin, begins at once, and prints its result as JSON when it ends. It yields the
processor to the attacked service, so that the test measures the service's resources and not the scheduling of
processes.
"""

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

MOST_CONNECTIONS: Final = 256
MOST_OPENINGS: Final = 20_000
MOST_SECONDS: Final = 60.0
PIECE: Final = 64 * 1024
DRIP_SECONDS: Final = 0.1
SILENCE: Final = 3600.0
LARGE_BYTES: Final = 25 * 1024 * 1024 - 1
"""Just short of the largest body that forge-integration reads by default."""

Action = Iterator[bytes | memoryview | float]
"""The next action of a connection: send these bytes, or wait so many seconds."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The kind of an attack, its targets, and its length."""

    kind: str
    targets: tuple[tuple[int, str], ...]
    """The ports of this machine that are attacked by turns, and the path to which bodies are sent there."""
    connections: int
    """The number of connections at once; closed ones are opened again."""
    seconds: float
    secret: str = ""
    """Forgejo's secret, for signed bodies."""
    awaited: str = ""
    """A status; the attack lasts longer until a service has answered with it."""


@dataclass(kw_only=True)
class Done:
    """The result of an attack."""

    opened: int = 0
    most_open: int = 0
    bytes_sent: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    """How often each status was answered."""


def _silence() -> Action:
    yield SILENCE


def _dripping_head(head: bytes) -> Action:
    yield head + b"A: "
    for _ in itertools.count():
        yield DRIP_SECONDS
        yield b"b"


def _endless_fields(head: bytes) -> Action:
    yield head
    yield from itertools.repeat(b"a: b\r\n" * (PIECE // 6))


def _endless_field(head: bytes) -> Action:
    yield head + b"a: "
    yield from itertools.repeat(b"b" * PIECE)


def _trailers(head: bytes) -> Action:
    yield head + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    yield from itertools.repeat(b"a: b\r\n" * (PIECE // 6))


def _body(head: bytes, body: memoryview, missing: int) -> Action:
    """All but the last bytes of a body; then nothing more."""
    yield head + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for begin in range(0, len(body) - missing, PIECE):
        yield body[begin : min(begin + PIECE, len(body) - missing)]
    yield SILENCE


def actions(attack: Attack) -> Callable[[int, str], Action]:
    """The actions of a connection of the attack, by port and path."""
    body = b'{"x":"' + b"x" * (LARGE_BYTES - 8) + b'"}'
    proof = hmac.new(attack.secret.encode(), body, hashlib.sha256).hexdigest()
    signed = f"X-Forgejo-Event: push\r\nX-Forgejo-Delivery: d\r\nX-Forgejo-Signature: {proof}\r\n"

    def doing(port: int, path: str) -> Action:
        host = f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        asks, posts = f"GET / {host}".encode(), f"POST {path} {host}".encode()
        kinds: Mapping[str, Callable[[], Action]] = {
            "silence": _silence,
            "dripping-heads": partial(_dripping_head, asks),
            "endless-heads": partial(_endless_fields, asks),
            "endless-field": partial(_endless_field, asks),
            "trailers": partial(_trailers, posts + signed.encode()),
            "unsigned-bodies": partial(_body, posts, memoryview(body), 1),
            "signed-bodies-cut-short": partial(_body, posts + signed.encode(), memoryview(body), 5),
        }
        return kinds[attack.kind]()

    return doing


class Connection:
    """One connection to the attacked."""

    def __init__(self, port: int, doing: Action) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.socket.connect(("127.0.0.1", port))
        self.received = b""
        self.wakes_at = 0.0
        self._doing = doing
        self._left: bytes | memoryview = b""

    def read(self) -> bool:
        """Whether it is still open."""
        try:
            got = self.socket.recv(PIECE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.received = self.received or got[:16]
        return bool(got)

    def write(self, now: float) -> int:
        """The number of sent bytes; -1 when the service has closed the connection."""
        while not self._left:
            following = next(self._doing)
            if isinstance(following, float):
                self.wakes_at = now + following
                return 0
            self._left = following
        try:
            sent = self.socket.send(self._left)
        except BlockingIOError:
            return 0
        except OSError:
            # It may have answered before.
            self.read()
            return -1
        self._left = memoryview(self._left)[sent:]
        return sent


class Stranger:
    """The attacker, with all its connections."""

    def __init__(self, attack: Attack) -> None:
        self.done = Done()
        self._attack = attack
        self._doing = actions(attack)
        self._targets = itertools.cycle(attack.targets)
        self._open: set[Connection] = set()
        self._answers: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()

    def run(self) -> Done:
        """Attack until the time is over or enough connections were opened."""
        began = time.monotonic()
        while (now := time.monotonic()) < began + self._seconds():
            self._fill(now)
            for key, events in self._selector.select(0.05):
                self._go_on(key.data, events)
        for connection in list(self._open):
            self._close(connection)
        self.done.statuses = dict(self._answers)
        return self.done

    def _seconds(self) -> float:
        """The present length of the attack."""
        lacks = self._attack.awaited and self._attack.awaited not in self._answers
        return MOST_SECONDS if lacks else min(self._attack.seconds, MOST_SECONDS)

    def _fill(self, now: float) -> None:
        """Open missing connections, and continue those that have waited long enough."""
        most = min(self._attack.connections, MOST_CONNECTIONS)
        while len(self._open) < most and self.done.opened < MOST_OPENINGS:
            port, path = next(self._targets)
            connection = Connection(port, self._doing(port, path))
            self._open.add(connection)
            self._selector.register(
                connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection
            )
            self.done.opened += 1
        self.done.most_open = max(self.done.most_open, len(self._open))
        for connection in self._open:
            if 0 < connection.wakes_at <= now:
                connection.wakes_at = 0.0
                self._selector.modify(
                    connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection
                )

    def _go_on(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_READ and not connection.read():
            self._close(connection)
            return
        if events & selectors.EVENT_WRITE:
            sent = connection.write(time.monotonic())
            if sent < 0:
                self._close(connection)
                return
            self.done.bytes_sent += sent
            if connection.wakes_at:
                self._selector.modify(connection.socket, selectors.EVENT_READ, connection)

    def _close(self, connection: Connection) -> None:
        if connection.received.startswith(b"HTTP/1.1 "):
            self._answers[connection.received[9:12].decode("ascii", "replace")] += 1
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._open.discard(connection)


if __name__ == "__main__":
    os.nice(10)
    json.dump(asdict(Stranger(Attack(**json.load(sys.stdin))).run()), sys.stdout)
