"""A job in a container reaches nothing of what the machine's processes reach."""

import asyncio
import ctypes
import os
import platform
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess
from tests.container_jobs import ContainerJobs, container_jobs
from tests.servers.podman import SERVER, PodmanStore

SEIZE, PTRACE = 0x4206, {"x86_64": 101, "aarch64": 117}
"""PTRACE_SEIZE, which does not stop the traced process; and the number of ptrace(2) for each kind of processor."""
MADE_FOR_ALL, REMOVED = 0o1666, 0
CONNECT = "socket(S, PF_UNIX, SOCK_STREAM, 0) and connect(S, sockaddr_un({path})) or exit 1"
IPV4 = {
    "a proxy at the loopback address": "exec 3<>/dev/tcp/127.0.0.1/{port}",
    "a server at the machine's own address": "exec 3<>/dev/tcp/{address}/{port}",
    "a name server": "exec 3<>/dev/udp/127.0.0.1/{dns}; echo ask >&3; read -t 20 -N 1 answer <&3",
}
IPV6 = {
    "a proxy at the loopback address of IPv6": "exec 3<>/dev/tcp/::1/{port6}",
    "a server at the machine's own address of IPv6": "exec 3<>/dev/tcp/{address6}/{port6}",
}
OTHERS = {
    "a socket without a file": f"perl -MSocket -e '{CONNECT.format(path='chr(0).q({socket})')}'",
    "a socket in a folder": f"perl -MSocket -e '{CONNECT.format(path='q({folder}/socket)')}'",
    "a file": "head -c 1 {folder}/file",
    "shared memory": "perl -e 'defined shmget({key}, 1, 0) or exit 1'",
    "a process, by a signal": "kill -0 {pid}",
    "a process, by its variables": "grep -a planted /proc/{pid}/environ",
    "the memory of a process": "head -c 0 /proc/{pid}/mem",
    "a process, by tracing it": "perl -e 'exit(0 != syscall({ptrace}, {seize}, {pid}, 0, 0))'",
}
PROCESS = """
import ctypes, sys
# Where the module Yama is in the kernel, any process may trace this one.
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def jobs(podman: PodmanStore, tmp_path: Path) -> AsyncIterator[ContainerJobs]:
    async with container_jobs(podman, tmp_path) as opened:
        yield opened


@contextmanager
def shared_memory(key: int) -> Iterator[None]:
    """A segment of shared memory (shmget(2)) that every user may read and write."""
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(key, 1, MADE_FOR_ALL)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.shmctl(segment, REMOVED, None)


@contextmanager
def folder_of_all() -> Iterator[Path]:
    """A folder that every user may enter, with a file."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        Path(name, "file").write_text("x")
        yield Path(name)


class Answering(asyncio.DatagramProtocol):
    """Answers every datagram."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.transport.sendto(data, addr)


def own_address(family: socket.AddressFamily, elsewhere: str) -> str | None:
    """The address with which this machine would call another one; no packet is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as udp:
            udp.connect((elsewhere, 9))
            return str(udp.getsockname()[0])
    except OSError:
        return None


def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def neighbours(stack: AsyncExitStack) -> dict[str, str]:
    """Open what the machine has beside a job; return the scripts that reach it.

    Without IPv6, an address beside that of its loopback interface or a known kind of processor the machine lacks some.
    """
    folder = stack.enter_context(folder_of_all())
    served = await stack.enter_async_context(await asyncio.start_server(hang_up, "0.0.0.0", 0))  # noqa: S104
    key = int.from_bytes(os.urandom(3)) + 1
    stack.enter_context(shared_memory(key))
    facts: dict[str, object] = {
        "port": served.sockets[0].getsockname()[1],
        "address": own_address(socket.AF_INET, "192.0.2.1"),
        "folder": folder,
        "socket": f"solstice-test-{os.urandom(8).hex()}",
        "key": key,
        "seize": SEIZE,
        "ptrace": PTRACE.get(platform.machine()),
    }
    scripts = IPV4 | OTHERS
    if own_address(socket.AF_INET6, "::1"):
        served = await stack.enter_async_context(await asyncio.start_server(hang_up, "::", 0))
        facts["port6"] = served.sockets[0].getsockname()[1]
        facts["address6"] = own_address(socket.AF_INET6, "2001:db8::1")
        scripts |= IPV6
    for path in (f"\0{facts['socket']}", str(folder / "socket")):
        await stack.enter_async_context(await asyncio.start_unix_server(hang_up, path))
    (folder / "socket").chmod(0o666)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Answering, ("127.0.0.1", 0))
    stack.callback(transport.close)
    facts["dns"] = transport.get_extra_info("sockname")[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROCESS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"NAME": "planted"},
    )
    stack.push_async_callback(process.communicate, b"")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    facts["pid"] = process.pid
    return {
        name: script.format_map(facts)
        for name, script in scripts.items()
        if not any(f"{{{fact}}}" in script and facts[fact] is None for fact in facts)
    }


async def test_a_job_reaches_nothing_that_a_process_of_the_machine_reaches(jobs: ContainerJobs) -> None:
    async with AsyncExitStack() as stack:
        scripts = await neighbours(stack)
        tries = "\n".join(
            [
                "set +e",
                *(f'( {each} ) >/dev/null 2>&1 && echo "reached {name}"' for name, each in scripts.items()),
            ]
        )
        here = await asyncio.create_subprocess_exec("bash", "-c", tries, stdout=asyncio.subprocess.PIPE)
        reached, _ = await here.communicate()
        assert reached.decode().splitlines() == [f"reached {name}" for name in scripts]
        # A stranger's job that asks for a network, and one of ours that asks for none.
        for trusted, network in ((False, NetworkAccess.DEFAULT), (True, NetworkAccess.NONE)):
            jobs.output.clear()
            spec = ContainerSpec(image=SERVER, network=network)
            outcome = await jobs.run(f"{tries}\necho tried", container=spec, request={"trusted": trusted})
            assert outcome.state is JobState.SUCCEEDED, jobs.text
            assert "reached" not in jobs.text
            assert "\ntried\n" in jobs.text
