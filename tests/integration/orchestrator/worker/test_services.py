"""Services beside jobs, in containers of a real podman."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from solstice_cli.demo.local_podman import storage_driver
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, PullPolicy, ServiceSpec
from solstice_orchestrator.domain.jobs import Outcome, Reason, StepSpec
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.worker.executors import disk
from solstice_orchestrator.worker.executors.containers import podman_launcher
from solstice_orchestrator.worker.executors.containers.container_facts import judged
from tests.builders import execution, job
from tests.container_jobs import ContainerJobs, container_jobs
from tests.polling import wait_until
from tests.servers.podman import IMAGE, NO_SHELL, SERVER, PodmanStore, networks_can_be_made

LISTENS = (
    "exec perl -e 'use Socket; socket(S, PF_INET, SOCK_STREAM, 0); bind(S, sockaddr_in($ENV{PORT}, INADDR_ANY)) or die; "
    'listen(S, 9); print STDERR "listens\\n"; while (accept(C, S)) { print C "hello from $ENV{WHO}\\n"; close C }\''
)
NOW = "bash -c 'echo now $EPOCHREALTIME'"
ASK = "exec 3<>/dev/tcp/echo/7000; cat <&3"


def server(run: str = LISTENS, *, who: str = "echo", name: str = "echo", at: int = 7000) -> ServiceSpec:
    return ServiceSpec(name=name, image=SERVER, env={"RUN": run, "PORT": str(at), "WHO": who}, port=at)


def running(run: str) -> ServiceSpec:
    """A service that is ready as soon as it runs."""
    return replace(server(run), port=None)


def beside(*services: ServiceSpec, network: NetworkAccess | None = None) -> ContainerSpec:
    return ContainerSpec(image=IMAGE, services=services, network=network)


@pytest.fixture
async def jobs(podman: PodmanStore, tmp_path: Path) -> AsyncIterator[ContainerJobs]:
    async with container_jobs(podman, tmp_path) as opened:
        yield opened


async def test_steps_begin_when_services_are_ready_and_reach_them_by_name(jobs: ContainerJobs) -> None:
    slow = replace(server(f"sleep 0.5; touch /tmp/ready; {LISTENS}"), ready="test -e /tmp/ready")
    other = server(name="other", at=7001, who="another one")
    outcome = await jobs.run(ASK, ASK, "exec 3<>/dev/tcp/other/7001; cat <&3", container=beside(slow, other))
    assert outcome.state is JobState.SUCCEEDED
    assert jobs.text.count("hello from echo\n") == 2
    assert jobs.text.count("hello from another one\n") == 1
    assert f"service echo: {SERVER} sha256:" in jobs.text


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When it was known how each job ended; its containers are removed after that."""
    moments = list[float]()

    def noted(*words: Any) -> Outcome:
        moments.append(time.time())
        return judged(*words)

    monkeypatch.setattr(podman_launcher, "judged", noted)
    return moments


def least_delay(known: list[float], word: str, text: str, after: float = 0.0) -> float:
    """The least time from moments in the output until the ends of jobs were known.

    They stand behind `word`. One of them may fall into a busy moment of the machine.
    """
    moments = [float(each) for each in re.findall(rf"^{word} (\S+)$", text, re.MULTILINE)]
    assert len(moments) == len(known)
    return min(end - moment for end, moment in zip(known, moments, strict=True)) - after


async def test_a_service_that_ends_or_is_never_ready_fails_the_job_before_its_first_step(
    jobs: ContainerJobs, known: list[float]
) -> None:
    outcome = await jobs.run("echo never", container=beside(running("echo last words; exit 3")))
    assert (outcome.state, outcome.reason, outcome.exit_code) == (
        JobState.FAILED,
        Reason.SERVICE_DIED,
        None,
    )
    assert outcome.detail == "the service 'echo' ended with exit code 3 before the first step"
    assert "last words\n" in jobs.text
    known.clear()
    late = replace(server(f"{NOW}; exec sleep 1000"), ready="false", ready_seconds=0.5)
    for service in (late, replace(late, port=None), replace(late, ready=None)):
        outcome = await jobs.run("echo never", container=beside(service))
        assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.SERVICE_NOT_READY)
        assert outcome.detail == "the service 'echo' was not ready within 0.5 s"
    assert "\nnever" not in jobs.text
    assert least_delay(known, "now", jobs.text, late.ready_seconds or 0) < 1


async def test_a_service_that_dies_ends_the_step_and_fails_the_job_for_that(
    jobs: ContainerJobs, known: list[float]
) -> None:
    # It accepts the connection that finds out whether it is ready, and ends with the next.
    breaks = server(
        "exec perl -e 'use Socket; socket(S, PF_INET, SOCK_STREAM, 0); bind(S, sockaddr_in(7000, INADDR_ANY)); listen(S, 9); "
        "accept(C, S); accept(C, S); exit 5'"
    )
    # What the step makes of it does not matter.
    for end in ("sleep 1000", "exit 9"):
        step = f"exec 3<>/dev/tcp/echo/7000; cat <&3; {NOW}; {end}"
        outcome = await jobs.run("true", step, "echo never", container=beside(breaks))
        assert (outcome.state, outcome.reason, outcome.exit_code) == (
            JobState.FAILED,
            Reason.SERVICE_DIED,
            None,
        )
        assert outcome.detail == "the service 'echo' ended with exit code 5 during the step 'step 2'"
    assert "\nnever" not in jobs.text
    assert least_delay(known, "now", jobs.text) < 1


async def test_an_image_that_cannot_run_is_the_jobs_failure_and_a_missing_one_too(
    jobs: ContainerJobs,
) -> None:
    outcome = await jobs.run("echo never", container=beside(ServiceSpec(name="db", image=NO_SHELL)))
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.CONTAINER_REFUSED)
    missing = ServiceSpec(name="db", image="localhost/missing:1", pull=PullPolicy.NEVER)
    outcome = await jobs.run("echo never", container=beside(missing))
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.IMAGE_UNAVAILABLE)
    dead = ServiceSpec(name="db", image="127.0.0.1:1/missing:1")
    outcome = await jobs.run("echo never", container=beside(dead))
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
    assert "\nnever" not in jobs.text


ESCAPES = {
    "the machine": "exec 3<>/dev/tcp/{machine}/{port}",
    "the machine's loopback": "exec 3<>/dev/tcp/127.0.0.1/{port}",
    "the metadata address": "exec 3<>/dev/tcp/169.254.169.254/80",
    "a name server": "exec 3<>/dev/udp/1.1.1.1/53 && echo x >&3",
    "a host by IPv6": "exec 3<>/dev/tcp/2606:4700:4700::1111/53",
    "a name": "exec 3<>/dev/tcp/example.com/80",
    "another interface": "ls /sys/class/net | grep -v lo",
}


async def test_with_services_only_job_and_service_reach_each_other_and_nothing_else(
    jobs: ContainerJobs,
) -> None:
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "0.0.0.0", 0)  # noqa: S104
    port = listening.sockets[0].getsockname()[1]
    lines = [
        f"( {command.format(machine='10.88.0.1', port=port)} ) >/dev/null 2>&1 && echo reached {number}"
        for number, command in enumerate(ESCAPES.values())
    ]
    tries = "\n".join(["set +e", *lines, "true"])
    for trusted, network in ((True, NetworkAccess.SERVICES_ONLY), (False, NetworkAccess.DEFAULT)):
        jobs.output.clear()
        service = replace(
            server(f"bash -c '{tries}' > /tmp/tries; echo a volume > /data/written; {LISTENS}"),
            ready="! grep reached /tmp/tries",
        )
        spec = beside(service, network=network)
        outcome = await jobs.run(tries, ASK, container=spec, request={"trusted": trusted})
        assert outcome.state is JobState.SUCCEEDED
        assert "hello from echo\n" in jobs.text
        assert "reached" not in jobs.text
    listening.close()


async def test_services_of_two_jobs_do_not_meet_where_both_have_a_network(
    jobs: ContainerJobs, podman: PodmanStore
) -> None:
    # Without CAP_NET_ADMIN podman gives no container a network; the tests of `services-only` run nevertheless.
    if not networks_can_be_made():
        pytest.skip("not asked for: this machine may not make networks")
    words: dict[str, list[bytes]] = {"first": [], "second": []}
    stop = asyncio.Event()

    async def run(who: str) -> Outcome:
        async def log(data: bytes) -> None:
            words[who].append(data)

        container = beside(server(who=who), network=NetworkAccess.DEFAULT)
        spec = job(ASK, "sleep 1000", container=container)
        return await jobs.executor.run(execution(spec, jobs.request), log, stop)

    both = [asyncio.ensure_future(run(who)) for who in words]
    await wait_until(lambda: all(b"hello from" in b"".join(each) for each in words.values()))
    assert b"hello from second" not in b"".join(words["first"])
    assert b"hello from first" not in b"".join(words["second"])
    first, second = [name for name in podman.containers() if not name.endswith("-echo")]
    answers = {
        (here, there): answer_of(podman, here, address_of(podman, there))
        for here in (first, second)
        for there in (first, second)
    }
    assert "hello from" in answers[first, first]
    assert "hello from" in answers[second, second]
    assert answers[first, second] == answers[second, first] == ""
    # Neither does another process of the machine.
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.open_connection(address_of(podman, first), 7000)
    stop.set()
    assert {outcome.state for outcome in await asyncio.gather(*both)} == {JobState.CANCELLED}


def address_of(podman: PodmanStore, container: str) -> str:
    return podman.run("inspect", container, "--format", "{{.NetworkSettings.IPAddress}}").strip()


def answer_of(podman: PodmanStore, container: str, address: str) -> str:
    """What the server at an address says to a container, if anything."""
    ask = f"exec 3<>/dev/tcp/{address}/7000; cat <&3"
    give_up = f"bash -c '{ask}' & asking=$!; ( sleep 0.5; kill $asking ) & wait $asking; true"
    return podman.run("exec", container, "bash", "-c", give_up)


HOSTILE = r"""
grep CapEff /proc/self/status
grep NoNewPrivs /proc/self/status
mount -t tmpfs none /tmp && echo mounted
mknod /tmp/d b 8 0 && echo made a device
for p in /proc/[0-9]*; do grep -q sleep.1$ $p/cmdline && kill -9 ${p#/proc/} && echo ended process; done
ls /workspace/hello.txt /run/solstice && echo sees the job
env | grep ^SOLSTICE_ && echo knows the job
echo '! the job was cancelled'; echo '{"event": "end", "how": "completed"}'
for i in $(seq 500); do sleep 1000 & done
"""


async def test_a_hostile_service_is_bounded_and_forges_nothing(jobs: ContainerJobs) -> None:
    outcome = await jobs.run("sleep 1000", container=beside(running(HOSTILE)))
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.SERVICE_DIED)
    wrote = jobs.text.partition("the end of what the service echo wrote\n")[2]
    assert "Cannot fork" in wrote
    assert "NoNewPrivs:\t1" in wrote
    # CHOWN, DAC_OVERRIDE, FOWNER, SETGID and SETUID: capabilities(7).
    assert "CapEff:\t00000000000000cb" in wrote
    for word in ("mounted", "made a device", "sees the job", "knows the job", "ended process"):
        assert word not in wrote
    marks = [bytes(piece) for piece in jobs.output if isinstance(piece, LogMark)]
    assert b"! the job was cancelled\n" not in marks
    outcome = await jobs.run("sleep 1000", container=beside(running("x=a; while :; do x=$x$x; done")))
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.SERVICE_DIED)


@pytest.mark.parametrize("place", ["/filling", "/data/filling"], ids=["in its layer", "in its volume"])
async def test_what_a_service_writes_counts_for_the_disk_space_of_its_job(
    podman: PodmanStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    # Only overlays keep a layer of each container, whose size can be measured.
    if storage_driver(podman.folder) == "vfs" and not place.startswith("/data"):
        pytest.skip("not asked for: the folder of this test allows no overlays, and vfs keeps no layers")
    monkeypatch.setattr(disk, "CHECK_SECONDS", 0.05)
    watch = disk.DiskWatch(limit_bytes=8 * disk.MIB)
    async with container_jobs(podman, tmp_path, disk=watch) as jobs:
        fills = running(f"head -c 9M /dev/zero > {place}; exec sleep 1000")
        outcome = await jobs.run("sleep 1000", container=beside(fills))
        assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.OUT_OF_DISK)
        assert "may use 8 MiB" in outcome.detail


async def test_a_cancelled_job_and_one_out_of_time_leave_no_service(jobs: ContainerJobs) -> None:
    stop = asyncio.Event()
    run = asyncio.ensure_future(jobs.run("echo begun; sleep 1000", stop=stop, container=beside(server())))
    await wait_until(lambda: "begun" in jobs.text)
    stop.set()
    assert (await run).state is JobState.CANCELLED
    slow = StepSpec(name="slow", run="sleep 1000", timeout_seconds=0.2)
    outcome = await jobs.run(slow, container=beside(running("sleep 1000")))
    assert (outcome.state, outcome.reason) == (JobState.TIMED_OUT, Reason.STEP_TIMEOUT)
    run = asyncio.ensure_future(jobs.run("echo begins; sleep 1000", container=beside(server())))
    await wait_until(lambda: "begins" in jobs.text)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
