"""Untrusted jobs in containers of a real podman, and the hosts that they reach."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, ServiceSpec
from solstice_orchestrator.domain.jobs import Reason, StepSpec
from solstice_orchestrator.processes.egress import egress_proxy
from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts, parse_hosts, parse_networks
from solstice_orchestrator.processes.egress.egress_facts import EgressResult
from solstice_orchestrator.worker.executors.containers.container_plan import FIRST_USER, USERS
from tests.container_jobs import RULES, ContainerJobs, container_jobs
from tests.escapes import CONTROL, EGRESS_ATTEMPTS, succeeded, tried
from tests.executor_harness import runs
from tests.polling import wait_until
from tests.servers.podman import IMAGE, SERVER, PodmanStore

STRANGER = {"trusted": False}
MIB = 1024 * 1024
ANYTHING = ContainerSpec(image=IMAGE)
LISTENS = (
    "socket(S, PF_INET, SOCK_STREAM, 0); setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1); bind(S, sockaddr_in(7000, INADDR_ANY)); "
    'listen(S, 9); while (accept(C, S)) { print C "hello from db\\n"; close C }'
)
ASK = """
ask() {
  exec 3<>/dev/tcp/127.0.0.1/3128
  printf '%b' "$1" >&3
  cat <&3
  exec 3<&-
}
"""


@dataclass
class Origin:
    """A server of the tests outside of all containers, and what it was sent."""

    port: int = 0
    received: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.received.append(head)
        body = bytes(2 * MIB) if b" /large " in head else b"ours"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        with contextlib.suppress(ConnectionResetError):
            await writer.drain()
        writer.close()


@asynccontextmanager
async def open_origin() -> AsyncIterator[Origin]:
    origin = Origin()
    async with await asyncio.start_server(origin.serve, "127.0.0.1", 0) as server:
        origin.port = server.sockets[0].getsockname()[1]
        yield origin


@asynccontextmanager
async def strangers(
    podman: PodmanStore, folder: Path, hosts: str, networks: str = "127.0.0.1"
) -> AsyncIterator[ContainerJobs]:
    """An executor that lets untrusted jobs reach these hosts, and exchange a MiB with them."""
    allowed = AllowedHosts(hosts=parse_hosts(hosts), networks=parse_networks(networks), most_bytes=MIB)
    async with container_jobs(
        podman, folder, replace(RULES, egress=allowed), AMQP_URL="amqp://planted@h"
    ) as jobs:
        yield jobs


async def test_a_stranger_reaches_an_allowed_host_by_the_proxy_and_learns_why_not_another(
    podman: PodmanStore, tmp_path: Path
) -> None:
    async with open_origin() as origin, strangers(podman, tmp_path, f"localhost:{origin.port}") as jobs:
        asks = f"""{ASK}
        test "$https_proxy $HTTP_PROXY" = "http://127.0.0.1:3128 http://127.0.0.1:3128" && echo variables
        ask 'CONNECT localhost:{origin.port} HTTP/1.1\r\n\r\nGET /tunnel HTTP/1.1\r\nHost: x\r\n\r\n'
        ask 'GET http://localhost:{origin.port}/plain HTTP/1.1\r\nHost: other.example\r\n\r\n'
        ask 'CONNECT other.example:443 HTTP/1.1\r\n\r\n'
        """
        outcome = await jobs.run(asks, container=ANYTHING, request=STRANGER)
    assert outcome.state is JobState.SUCCEEDED
    assert (
        "network: the hosts that UNTRUSTED_EGRESS allows, through the proxy http://127.0.0.1:3128\n"
        in jobs.text
    )
    assert "variables\n" in jobs.text
    assert jobs.text.count("ours") == 2
    assert [each.split(b"\r\n")[0] for each in origin.received] == [
        b"GET /tunnel HTTP/1.1",
        b"GET /plain HTTP/1.1",
    ]
    assert b"Host: localhost:%d\r\n" % origin.port in origin.received[1]
    refusal = (
        "other.example:443 is not among the hosts that untrusted jobs may reach here (UNTRUSTED_EGRESS)\n"
    )
    assert f"solstice: {refusal}" in jobs.text
    assert f"\r\n\r\n{refusal}" in jobs.text
    assert dict(outcome.egress) == {EgressResult.CONNECTED: 2, EgressResult.HOST_REFUSED: 1}


async def test_no_attempt_succeeds_to_reach_more_by_the_proxy_or_beside_it(
    podman: PodmanStore, tmp_path: Path
) -> None:
    async with open_origin() as origin, strangers(podman, tmp_path, f"*:{origin.port}", "") as jobs:
        asks = [each.format(port=origin.port) for each in EGRESS_ATTEMPTS.values()]
        lines = [
            f"ask '{each}\\r\\n\\r\\nGET / HTTP/1.1\\r\\n\\r\\n' | grep -q -e ours -e ' 200 ' && echo reached {each!r}"
            for each in asks
        ]
        beside = [
            f"( exec 4<>/dev/tcp/127.0.0.1/{origin.port} ) && echo reached directly",
            "( exec 4<>/dev/udp/1.1.1.1/53 && echo x >&4 ) && echo reached a name server",
            "( exec 4<>/dev/tcp/pypi.org/443 ) && echo reached by name",
            f"( exec 4<>/dev/tcp/0.0.0.0/{origin.port} ) && echo reached by no address",
            "kill -9 $(grep -l -e egress -e python /proc/[0-9]*/cmdline | grep -v self | grep -o '[0-9]*') && echo reached the proxy",
        ]
        floods = '( for i in $(seq 10 109); do eval "exec $i<>/dev/tcp/127.0.0.1/3128" || break; done; echo flooded )'
        endless = "( exec 5<>/dev/tcp/127.0.0.1/3128; printf 'GET / HTTP/1.1\\r\\n' >&5; for i in $(seq 4000); do echo 'X: yyyyyyyyyyyyyyyyyyyyyyyyy' >&5 || break; done )"
        step = "\n".join(
            [
                "set +e",
                ASK,
                *lines,
                *beside,
                floods,
                endless,
                "ask 'CONNECT 127.0.0.1:1 HTTP/1.1\\r\\n\\r\\n'",
                "true",
            ]
        )
        tries = [StepSpec(name=f"try {number}", run=each) for number, each in enumerate(tried())]
        outcome = await jobs.run(step, *tries, container=ANYTHING, request=STRANGER)
    assert outcome.state is JobState.SUCCEEDED
    assert "reached" not in jobs.text
    assert "flooded\n" in jobs.text
    assert origin.received == []
    assert succeeded(jobs.text) == [CONTROL]
    # It still serves the job at the end.
    assert "\r\n\r\n127.0.0.1:1 is not among the hosts" in jobs.text
    counts = dict(outcome.egress)
    assert EgressResult.CONNECTED not in counts
    assert counts[EgressResult.ADDRESS_REFUSED] >= 8


async def test_a_proxy_is_no_root_shares_the_limits_of_its_job_and_works_beside_services(
    podman: PodmanStore, tmp_path: Path
) -> None:
    listens = "exec perl -MSocket -e '" + LISTENS + "'"
    container = replace(
        ANYTHING, services=(ServiceSpec(name="db", image=SERVER, env={"RUN": listens}, port=7000),)
    )
    async with open_origin() as origin, strangers(podman, tmp_path, f"localhost:{origin.port}") as jobs:
        asks = f"""{ASK}
        echo $no_proxy
        exec 4<>/dev/tcp/db/7000; cat <&4
        ask 'GET http://localhost:{origin.port}/ HTTP/1.1\r\n\r\n'
        echo begun; sleep 1000
        """
        stop = asyncio.Event()
        running = asyncio.ensure_future(jobs.run(asks, container=container, request=STRANGER, stop=stop))
        await wait_until(lambda: "begun\n" in jobs.text)
        proxy = runs(egress_proxy)
        users = re.findall(rb"^Uid:\s*(\d+)\s+(\d+)\s+(\d+)", about(proxy, "status"), re.MULTILINE)
        groups = about(proxy, "cgroup")
        stop.set()
        outcome = await running
    assert outcome.state is JobState.CANCELLED
    assert about(proxy, "status") == b""
    assert "localhost,127.0.0.1,::1,db\n" in jobs.text
    assert "hello from db" in jobs.text
    assert "ours" in jobs.text
    assert len({*users[0]}) == 1
    assert int(users[0][0]) >= FIRST_USER + USERS
    assert re.search(rb"^\d+:(|.*\bmemory\b.*):.*libpod-", groups, re.MULTILINE)


async def test_a_stranger_exchanges_no_more_bytes_than_allowed(podman: PodmanStore, tmp_path: Path) -> None:
    async with open_origin() as origin, strangers(podman, tmp_path, f"localhost:{origin.port}") as jobs:
        large = f"ask 'GET http://localhost:{origin.port}/large HTTP/1.1\r\n\r\n'"
        asks = f"""set +e
        {ASK}
        {large} >$TMPDIR/got 2>&1
        grep -a -q 'reset by peer' $TMPDIR/got && echo reset
        test $(wc -c <$TMPDIR/got) -le {MIB} && echo bounded
        {large}
        """
        outcome = await jobs.run(asks, container=ANYTHING, request=STRANGER)
    assert all(line in jobs.text for line in ("reset\n", "bounded\n", "HTTP/1.1 403 Forbidden"))
    refusal = "an untrusted job here may exchange 1 MiB with all hosts, and no more (UNTRUSTED_EGRESS_MIB)\n"
    assert f"solstice: {refusal}" in jobs.text
    assert dict(outcome.egress) == {EgressResult.CONNECTED: 1, EgressResult.LIMIT_REACHED: 2}


async def test_a_job_that_wants_no_network_has_no_proxy(podman: PodmanStore, tmp_path: Path) -> None:
    tries = "env | grep -i _proxy && echo has variables; ( exec 3<>/dev/tcp/127.0.0.1/3128 ) && echo has a proxy; true"
    async with strangers(podman, tmp_path, "*") as jobs:
        container = replace(ANYTHING, network=NetworkAccess.NONE)
        outcome = await jobs.run(f"set +e; {tries}", container=container, request=STRANGER)
    assert outcome.state is JobState.SUCCEEDED
    assert "has" not in jobs.text.partition("$ step 1")[2]
    assert outcome.egress == ()


async def test_a_proxy_that_does_not_start_is_the_worlds_failure(
    podman: PodmanStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_proxy, "proxy_command", lambda _: ("/bin/false",))
    async with strangers(podman, tmp_path, "*") as jobs:
        outcome = await jobs.run("echo never", container=ANYTHING, request=STRANGER)
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
    assert outcome.detail.startswith("the proxy to the hosts of UNTRUSTED_EGRESS did not start")
    assert "never\n" not in jobs.text


def about(pid: int, file: str) -> bytes:
    """What the kernel says about a process; nothing once it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{file}").read_bytes()
    return b""
