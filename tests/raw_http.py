"""Sends arbitrary bytes to a service, and measures how genuine senders fare meanwhile."""

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
    """The process's present memory in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} is gone")


def peak_mib(pid: int) -> float:
    """The largest memory the process ever had, in MiB."""
    return peak_in(Path(f"/proc/{pid}/status").read_text())


def peak_in(status: str) -> float:
    """The largest memory in a process's `/proc/PID/status`, in MiB."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the process is gone")


def open_files(pid: int) -> int:
    """How many descriptors the process has open now."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def seconds_queued(pid: int) -> float:
    """Seconds that its threads were ready while the machine ran others.

    Of the threads of a Python process one runs at a time: while one waits for a processor, all may have to wait.
    """
    # `schedstat` holds the nanoseconds on a processor, the nanoseconds of waiting for one, and how often it got one.
    waits = [path.read_text().split()[1] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, waits)) / 1e9


def exchange(url: str, pieces: Sequence[bytes], *, seconds: float = 20.0) -> bytes:
    """Send these bytes, and return all that the server sent.

    It sends as far as the server reads, and reads until the server closes or sends no more.
    """
    with socket.create_connection(address(url), timeout=seconds) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                break
        return read_to_end(connection)


def read_to_end(connection: socket.socket) -> bytes:
    """Everything until the end, or until the connection is reset."""
    received = b""
    try:
        while got := connection.recv(65536):
            received += got
    except (ConnectionError, TimeoutError):
        pass
    return received


def status_code(answer: bytes) -> int:
    """The status of the first answer; 0 without one."""
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def webhook_bytes(number: int, *, path: str = "/webhooks/forgejo", more: str = "") -> bytes:
    """A genuine signed push as it is on the wire."""
    body, headers = push(number)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n{lines}{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def send_genuine(url: str, number: int) -> tuple[int, float]:
    """Send a genuine webhook over a new connection.

    Returns the status and the seconds until the answer.
    """
    began = time.monotonic()
    try:
        answer = exchange(url, [webhook_bytes(number)])
    except OSError:
        answer = b""
    return status_code(answer), time.monotonic() - began


@contextlib.contextmanager
def connections(url: str, count: int) -> Iterator[list[socket.socket]]:
    """Open so many connections at once."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(address(url), timeout=20)))
            opened[-1].setblocking(False)
        yield opened


def send_some(connection: socket.socket, data: bytes) -> int:
    """Send as much as possible now; -1 when the server closed the connection."""
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return -1
