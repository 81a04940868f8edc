"""What strangers do to a service over raw sockets, and how a genuine sender fares meanwhile."""

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.integration.forge.pushes import push

MIB = 1024 * 1024


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def resident_mib(pid: int) -> float:
    """What the process holds in memory now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} is gone")


def peak_mib(pid: int) -> float:
    """The most that it ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} is gone")


def open_files(pid: int) -> int:
    """How many descriptors the process has open now."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def seconds_queued(pid: int) -> float:
    """How long its threads, ever, were ready to run while the machine ran others instead.

    Of the threads of a Python process one runs at a time: what one of them waits for a processor, all may have to wait.
    """
    # `schedstat` holds the nanoseconds on a processor, those of waiting for one, and how often it got one.
    waits = [path.read_text().split()[1] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, waits)) / 1e9


def exchange(url: str, pieces: Sequence[bytes], *, seconds: float = 20.0) -> bytes:
    """Send these, as far as the other side takes them; all that it said until it closed or fell silent."""
    with socket.create_connection(address(url), timeout=seconds) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                break
        return read_to_end(connection)


def read_to_end(connection: socket.socket) -> bytes:
    """Everything until the end; what was read when the connection was reset."""
    said = b""
    try:
        while got := connection.recv(65536):
            said += got
    except (ConnectionError, TimeoutError):
        pass
    return said


def status_code(answer: bytes) -> int:
    """Of the first answer; 0 when there is none."""
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def webhook_bytes(number: int, *, path: str = "/webhooks/forgejo", more: str = "") -> bytes:
    """A genuine signed push as it is on the wire."""
    body, headers = push(number)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n{lines}{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def send_genuine(url: str, number: int) -> tuple[int, float]:
    """Send a genuine webhook over a connection of its own: the status, and how long its answer took."""
    began = time.monotonic()
    try:
        answer = exchange(url, [webhook_bytes(number)])
    except OSError:
        answer = b""
    return status_code(answer), time.monotonic() - began


@contextlib.contextmanager
def connections(url: str, count: int) -> Iterator[list[socket.socket]]:
    """So many, open at once."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(address(url), timeout=20)))
            opened[-1].setblocking(False)
        yield opened


def send_some(connection: socket.socket, data: bytes) -> int:
    """As much of it as goes now; -1 when the other side has ended it."""
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return -1
