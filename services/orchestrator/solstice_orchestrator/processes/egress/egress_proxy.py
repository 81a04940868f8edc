"""The proxy through which one untrusted job reaches the hosts that the operator allows.

Run by `proxy_command` with the standard library alone, on the worker's machine, as a child of the supervisor, once the
job's container has started and before its first step. `DIRECTORY/egress.json` says what is allowed; `DIRECTORY/pid` names
process 1 of the container. This process listens in the network of the job, which has no other way out, and connects from the
network of the machine. It looks a host up itself, and connects to the addresses that it has checked. It writes:

* `ready` on standard output, once it listens;
* a line on standard error, the job's log, for each host that it refuses;
* `DIRECTORY/egress`, the number of requests by result (`EgressResult`), as JSON.

No process of the job can see this one, or reach the directory. It gives up root, and shares the limits of the job's memory and
processors. It ends with process 1 of the container, and not before: asked to end, a job may still need its network.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from solstice_orchestrator.processes.egress.allowed_hosts import (
    BYTES_SETTING,
    HOSTS_SETTING,
    PRIVATE_SETTING,
    AllowedHosts,
    Target,
    parse_hosts,
    parse_networks,
)
from solstice_orchestrator.processes.egress.egress_facts import ADDRESS, COUNTS, FILE, PORT, EgressResult
from solstice_orchestrator.processes.egress.egress_requests import EgressRequest, read_egress_request
from solstice_orchestrator.processes.egress.job_network import is_of_machine, listen_in, share_limits_of

COUNTS_BYTES: Final = 300
READY: Final = b"ready\n"
CONNECTIONS: Final = 64
"""At once. Further ones wait until the kernel accepts no more of them."""
HEAD_BYTES: Final = 16 * 1024
HEAD_SECONDS: Final = 10.0
LOOKUP_SECONDS: Final = 15.0
LOOKUPS: Final = 4
CONNECT_SECONDS: Final = 10.0
PIECE_BYTES: Final = 64 * 1024
MESSAGE_LENGTH: Final = 300
LINES: Final = 20
"""How many refusals the job's log shows."""
IDLE_SECONDS: Final = 300.0
"""How long neither job nor host may send anything."""
PAUSE_SECONDS: Final = 0.1
END: Final = b"\r\n\r\n"
MIB: Final = 1024 * 1024
RESET: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER for an end that is no orderly one."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RefusedEgress(Exception):
    """A request ends here; the message is for the job."""

    def __init__(self, result: EgressResult, status: str, why: str) -> None:
        super().__init__(why)
        self.result, self.status = result, status


class EgressProxy:
    """Serves the connections of one job."""

    def __init__(self, allowed: AllowedHosts, record: Callable[[Counter[str]], None]) -> None:
        self._allowed, self._record = allowed, record
        self._left = allowed.most_bytes or sys.maxsize
        self._counts = Counter[str]()
        self._shown = set[str]()
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._serving = set[asyncio.Task[None]]()

    async def accept_from(self, listener: socket.socket) -> None:
        """Serve connections, each in a task of its own, as long as this runs."""
        loop = asyncio.get_running_loop()
        while True:
            await self._free.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                # One that broke before it was accepted, or no descriptor is left for a moment.
                self._free.release()
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            task = asyncio.create_task(self._serve(connection), name="job's connection")
            self._serving.add(task)
            task.add_done_callback(self._ended)

    async def end(self) -> None:
        """End all connections."""
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._free.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tell(f"the proxy failed at a connection: {error!r}"[:MESSAGE_LENGTH])

    async def _serve(self, connection: socket.socket) -> None:
        # The job or the host may break a connection at any time, which is their affair.
        with contextlib.suppress(OSError, EOFError):
            reader, writer = await asyncio.open_connection(sock=connection, limit=HEAD_BYTES)
            with contextlib.closing(writer):
                try:
                    request = await _request(reader)
                    upstream = await self._connected(request.target)
                except RefusedEgress as refused:
                    self._count(refused.result)
                    self._tell(str(refused))
                    writer.write(_answer(refused))
                    await writer.drain()
                    return
                self._count(EgressResult.CONNECTED)
                try:
                    await _exchange(request, (reader, writer), upstream, self._spend)
                except* RefusedEgress as ended:
                    self._count(EgressResult.LIMIT_REACHED)
                    self._tell(str(ended.exceptions[0]))
                    for cut in (writer, upstream[1]):
                        _reset(cut)

    async def _connected(self, target: Target) -> Streams:
        """Return a connection to a host, at an address that was checked; raises RefusedEgress."""
        if not self._left:
            raise self._spent()
        if not self._allowed.allows(target):
            why = f"{target} is not among the hosts that untrusted jobs may reach here ({HOSTS_SETTING})"
            raise RefusedEgress(EgressResult.HOST_REFUSED, "403 Forbidden", why)
        addresses = await _addresses_of(target)
        if self._allowed.refused_address(addresses, is_of_machine):
            # Not which address: the names of our networks are no affair of strangers.
            why = f"{target} is at an address that is private or of the worker's machine, and in no network of {PRIVATE_SETTING}"
            raise RefusedEgress(EgressResult.ADDRESS_REFUSED, "403 Forbidden", why)
        problem = "no address"
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await _connection(address, target.port)
            except TimeoutError:
                problem = f"no connection within {CONNECT_SECONDS:g} s"
            except OSError as error:
                problem = os.strerror(error.errno) if error.errno else str(error)
        why = f"{target} cannot be reached: {problem}"
        raise RefusedEgress(EgressResult.UNREACHABLE, "502 Bad Gateway", why)

    def _spend(self, size: int) -> None:
        """Count bytes before they are passed on; raises RefusedEgress once they are too many."""
        self._left = max(self._left - size, 0)
        if not self._left:
            raise self._spent()

    def _spent(self) -> RefusedEgress:
        why = f"an untrusted job here may exchange {self._allowed.most_bytes / MIB:g} MiB with all hosts, and no more ({BYTES_SETTING})"
        return RefusedEgress(EgressResult.LIMIT_REACHED, "403 Forbidden", why)

    def _count(self, result: EgressResult) -> None:
        self._counts[result] += 1
        self._record(self._counts)

    def _tell(self, why: str) -> None:
        """Write a refusal into the log of the job, each once, up to a limit."""
        if why in self._shown or len(self._shown) > LINES:
            return
        self._shown.add(why)
        is_last = len(self._shown) > LINES
        _write_log("further refusals are not shown" if is_last else why)


async def _request(reader: asyncio.StreamReader) -> EgressRequest:
    malformed, bad = EgressResult.MALFORMED, "400 Bad Request"
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            return read_egress_request(await reader.readuntil(END))
    except TimeoutError:
        why = f"no request within {HEAD_SECONDS:g} s"
        raise RefusedEgress(malformed, "408 Request Timeout", why) from None
    except asyncio.LimitOverrunError:
        why = f"a request's head has more than {HEAD_BYTES} bytes"
        raise RefusedEgress(malformed, "431 Request Header Fields Too Large", why) from None
    except ValueError as error:
        raise RefusedEgress(malformed, bad, f"a request cannot be read: {error}") from None


async def _addresses_of(target: Target) -> Sequence[str]:
    """Return the addresses of a host; raises RefusedEgress without any."""
    loop = asyncio.get_running_loop()
    problem = f"no answer from the name server within {LOOKUP_SECONDS:g} s"
    with contextlib.suppress(TimeoutError):
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                # As bytes: Python would load a codec for text, which this user may not read.
                host = target.host.encode("ascii")
                found = await loop.getaddrinfo(host, target.port, type=socket.SOCK_STREAM)
                return list(dict.fromkeys(str(address[0]) for *_, address in found))
        except (socket.gaierror, RuntimeError) as error:
            # RuntimeError: the job has used up all processes and threads.
            problem = str(error.args[-1])
    why = f"{target} cannot be reached: {problem}"
    raise RefusedEgress(EgressResult.UNREACHABLE, "502 Bad Gateway", why)


async def _connection(address: str, port: int) -> Streams:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (address, port))
        return await asyncio.open_connection(sock=connection, limit=PIECE_BYTES)
    except BaseException:
        connection.close()
        raise


async def _exchange(
    request: EgressRequest, job: Streams, host: Streams, spend: Callable[[int], None]
) -> None:
    """Move what job and host send until both have ended, or one breaks the connection.

    What `spend` raises for the size of a piece ends it too, in a group of exceptions.
    """
    (from_job, to_job), (from_host, to_host) = job, host
    with contextlib.closing(to_host):
        async with asyncio.timeout(IDLE_SECONDS) as idle:
            if request.is_tunnel:
                to_job.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                spend(len(request.head))
                to_host.write(request.head)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(from_job, to_host, idle, spend, request.body_bytes))
                    both.create_task(_pump(from_host, to_job, idle, spend))
            except* (OSError, EOFError):
                pass


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    idle: asyncio.Timeout,
    spend: Callable[[int], None],
    size: int | None = None,
) -> None:
    """Move so many bytes, or all and then pass their end on.

    Each piece postpones the end of an idle connection.
    """
    left = sys.maxsize if size is None else size
    while left and (piece := await reader.read(min(left, PIECE_BYTES))):
        spend(len(piece))
        writer.write(piece)
        await writer.drain()
        left -= len(piece)
        if not idle.expired():
            idle.reschedule(asyncio.get_running_loop().time() + IDLE_SECONDS)
    if size is None:
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that neither side takes what came for the whole."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


def _answer(refused: RefusedEgress) -> bytes:
    body = f"{refused}\n".encode()
    head = f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _write_log(text: str) -> None:
    os.write(sys.stderr.fileno(), f"solstice: {text}\n".encode())


def proxy_command(directory: Path) -> Sequence[str]:
    """Return the command that runs this for a job.

    It finds the modules of this service beside the standard library, and no others.
    """
    places = Path(__file__).parents[3]
    code = f"import sys; sys.path.append(sys.argv[3]); from {__name__} import main; main(sys.argv[2])"
    return (sys.executable, "-I", "-S", "-c", code, __file__, str(directory), str(places))


def main(directory: str) -> None:
    """Serve a job until its container has ended."""
    place = Path(directory)
    plan = json.loads((place / FILE).read_text())
    allowed = AllowedHosts(
        hosts=parse_hosts(",".join(plan["hosts"])),
        networks=parse_networks(",".join(plan["networks"])),
        most_bytes=plan["bytes"],
    )
    container = int((place / "pid").read_text())
    ended = os.pidfd_open(container)
    counts = os.open(place / COUNTS, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    listener = listen_in(container, ADDRESS, PORT)
    listener.setblocking(False)
    share_limits_of(container)
    if plan["user"] is not None:
        _become(plan["user"])

    def record(counted: Counter[str]) -> None:
        # A full disk changes nothing for the job.
        with contextlib.suppress(OSError):
            os.pwrite(counts, json.dumps(counted).ljust(COUNTS_BYTES).encode(), 0)

    asyncio.run(_serve(EgressProxy(allowed, record), listener, ended))


def _become(user: int) -> None:
    """Become a user, and a group, whom the machine does not know."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


async def _serve(proxy: EgressProxy, listener: socket.socket, ended: int) -> None:
    loop = asyncio.get_running_loop()
    # Not to the end of the loop, which would wait for lookups.
    loop.add_reader(ended, os._exit, 0)
    loop.add_signal_handler(signal.SIGTERM, lambda: None)
    loop.set_default_executor(ThreadPoolExecutor(LOOKUPS))
    os.write(sys.stdout.fileno(), READY)
    os.close(sys.stdout.fileno())
    await proxy.accept_from(listener)
