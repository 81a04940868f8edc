"""Services with few descriptors, and with none left: real processes, raw sockets."""

import asyncio
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.fences import asks_for_inside
from tests.integration.forge.pushes import SECRET
from tests.polling import wait_until
from tests.raw_http import address, connections, exchange, open_files, send_genuine, status_code
from tests.servers import forge_integration, orchestrator
from tests.servers.forge_integration import ForgeProcess
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles

FEW = 128
STRANGERS = 200
REFUSED_SECONDS = 5.0
"""For how long a service without descriptors is asked; longer than its polling intervals."""
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW}, resource.getrlimit(resource.RLIMIT_NOFILE)[1])); "

Service = ForgeProcess | OrchestratorProcess


@contextmanager
def with_few_descriptors(name: str, directory: Path) -> Iterator[Service]:
    place = SharedFiles(directory=directory)
    # Longer than the test, so that timeouts of callers do not make room.
    chosen = {"HTTP_HEAD_SECONDS": "300", "HTTP_SILENCE_SECONDS": "300"}
    with ExitStack() as stack:
        if name == "orchestrator":
            start = LIMITED + orchestrator.START
            yield stack.enter_context(orchestrator.orchestrator(place, start=start, **chosen))
        else:
            start = LIMITED + forge_integration.START
            yield stack.enter_context(
                forge_integration.forge_integration(
                    place, start=start, FORGEJO_WEBHOOK_SECRET=SECRET, **chosen
                )
            )


@pytest.fixture(params=["forge-integration", "orchestrator"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with with_few_descriptors(request.param, tmp_path) as running:
        yield running


def answers(service: Service, number: int) -> bool:
    """Whether it works: it takes a genuine webhook, or answers the liveness probe."""
    if isinstance(service, ForgeProcess):
        return send_genuine(service.url, number)[0] == 202
    host, port = address(service.url)
    request = f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
    with suppress(OSError):
        return status_code(exchange(service.url, [request])) == 200
    return False


def processor_seconds(pid: int) -> float:
    """The processor time of the process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asks_for_inside("uvicorn")
async def test_silent_connections_on_few_descriptors_keep_no_other_out(service: Service) -> None:
    pid = service.process.pid
    assert answers(service, 1)
    before = open_files(pid)
    with connections(service.url, STRANGERS):
        assert [answers(service, number) for number in range(2, 12)] == [True] * 10
        # A part of the descriptors is for everything else.
        assert before + 32 < open_files(pid) < FEW
    await wait_until(lambda: open_files(pid) <= before + 4)
    assert answers(service, 12)
    assert service.process.poll() is None
    assert not [event for event in service.events if "Too many open files" in str(event)]


async def test_a_service_without_descriptors_waits_for_them_idle(service: Service) -> None:
    pid = service.process.pid
    assert answers(service, 1)
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files(pid), most))
    used, began = processor_seconds(pid), time.monotonic()
    with ExitStack() as stack:
        while time.monotonic() < began + REFUSED_SECONDS:
            with suppress(OSError):
                stack.enter_context(socket.create_connection(address(service.url), timeout=5))
            await asyncio.sleep(0.1)
        # A busy loop would use all available processor time.
        assert processor_seconds(pid) - used < (time.monotonic() - began) / 4
        assert service.process.poll() is None, service.events[-3:]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (FEW, most))
        await wait_until(lambda: answers(service, 2))
    assert service.process.poll() is None
