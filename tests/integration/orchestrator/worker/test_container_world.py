"""Images, networks and limits of containers, and failures of their machine."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess, PullPolicy, ServiceSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.processes import container_step
from solstice_orchestrator.processes.supervisor import process_ids
from solstice_orchestrator.worker.executors.containers import podman_launcher
from solstice_orchestrator.worker.executors.containers.container_plan import MIB
from solstice_orchestrator.worker.executors.containers.registry_logins import LoginRule, auth_file
from tests.container_jobs import MEMORY, PROCESSES, RULES, ContainerJobs, container_jobs
from tests.executor_harness import AS_OTHER_USER, NEEDS_OTHER_USER
from tests.servers.image_registry import ImageRegistry, image_registry
from tests.servers.podman import IMAGE, SERVER, SHELL_ONLY, PodmanStore, networks_can_be_made, podman_store
from tests.used_folders import files_in_use

PASSWORD = "heron-otter-reed-7731"
FREEBIND = 15
"""IP_FREEBIND of ip(7): an address may be used that no interface has yet."""


@pytest.fixture
async def jobs(podman: PodmanStore, tmp_path: Path) -> AsyncIterator[ContainerJobs]:
    async with container_jobs(podman, tmp_path) as opened:
        yield opened


@pytest.fixture
def registry(podman: PodmanStore, tmp_path: Path) -> Iterator[ImageRegistry]:
    podman.run("push", "--quiet", IMAGE, f"dir:{tmp_path}/image")
    with image_registry(tmp_path / "image") as opened:
        yield opened


async def test_the_image_of_a_digest_runs_and_no_other(jobs: ContainerJobs, registry: ImageRegistry) -> None:
    honoured = f"{registry.address}/acme/build@{registry.digest}"
    outcome = await jobs.run("echo it ran", container=ContainerSpec(image=honoured))
    assert outcome.state is JobState.SUCCEEDED
    assert outcome.image == honoured
    assert f"{honoured} {registry.digest}\n" in jobs.text
    assert registry.requests == [registry.digest]
    other = f"{registry.address}/acme/build@sha256:{'0' * 64}"
    outcome = await jobs.run("echo never", container=ContainerSpec(image=other))
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.IMAGE_UNAVAILABLE)
    assert "never" not in jobs.text


async def test_an_image_is_fetched_as_often_as_its_policy_says(
    jobs: ContainerJobs, registry: ImageRegistry
) -> None:
    name = f"{registry.address}/acme/build:1"
    for pull, fetches in ((PullPolicy.NEVER, 0), (PullPolicy.MISSING, 1), (PullPolicy.MISSING, 0)):
        registry.requests.clear()
        await jobs.run("true", container=ContainerSpec(image=name, pull=pull))
        assert len(registry.requests) == fetches
    outcome = await jobs.run("true", container=ContainerSpec(image=name, pull=PullPolicy.ALWAYS))
    assert outcome.image == f"{name}@{registry.digest}"
    assert registry.requests != []


async def test_a_login_fetches_private_images_and_no_process_job_or_file_shows_it(
    podman: PodmanStore, registry: ImageRegistry, tmp_path: Path
) -> None:
    registry.login = f"river-ci:{PASSWORD}"
    login = LoginRule(images=(f"{registry.address}/river/*",), user="river-ci", password="env:PLANTED")
    rules = replace(RULES, logins=(login,))
    private = ContainerSpec(image=f"{registry.address}/river/build:1")
    found: list[str] = []
    registry.on_question = lambda: found.extend(processes_with(PASSWORD))
    async with container_jobs(podman, tmp_path, rules, PLANTED=PASSWORD) as jobs:
        assert (
            await jobs.run("env; cat /proc/[0-9]*/environ", container=private)
        ).state is JobState.SUCCEEDED
        assert found == []
        assert PASSWORD not in jobs.text
        assert shows(tmp_path, PASSWORD) == []
        assert shows(podman.folder, PASSWORD) == []
        # It is on this machine by now, and a stranger gets it nevertheless only by the operator's word.
        outcome = await jobs.run("echo never", container=private, request={"trusted": False})
        assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.CONTAINER_REFUSED)
        outcome = await jobs.run(
            "echo never", container=replace(private, image=f"{registry.address}/lake/x:1")
        )
        assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.IMAGE_UNAVAILABLE)
        assert "never" not in jobs.text


async def test_a_login_of_the_machine_does_not_serve_strangers(
    podman: PodmanStore, registry: ImageRegistry, tmp_path: Path
) -> None:
    registry.login = f"river-ci:{PASSWORD}"
    logins = tmp_path / "auth.json"
    logins.write_bytes(auth_file(registry.address, "river-ci", PASSWORD))
    async with container_jobs(podman, tmp_path, REGISTRY_AUTH_FILE=str(logins)) as jobs:
        image = ContainerSpec(image=f"{registry.address}/river/build:1")
        outcome = await jobs.run("echo never", container=image, request={"trusted": False})
        assert outcome.reason is Reason.IMAGE_UNAVAILABLE
        assert (await jobs.run("true", container=image)).state is JobState.SUCCEEDED


async def test_a_password_that_cannot_be_read_is_the_worlds_failure(
    podman: PodmanStore, registry: ImageRegistry, tmp_path: Path
) -> None:
    login = LoginRule(images=(f"{registry.address}/**",), user="river-ci", password="file:missing")
    async with container_jobs(podman, tmp_path, replace(RULES, logins=(login,))) as jobs:
        outcome = await jobs.run("true", container=ContainerSpec(image=f"{registry.address}/build:1"))
        assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
        assert registry.requests == []


def processes_with(text: str) -> list[str]:
    """The processes other than this one that show it in their arguments or environment."""
    # Not by a pattern: a process that ends meanwhile would end the search.
    return [
        str(file)
        for pid in process_ids()
        for file in (Path(f"/proc/{pid}/cmdline"), Path(f"/proc/{pid}/environ"))
        if pid != os.getpid() and text in content(file)
    ]


def shows(folder: Path, text: str) -> list[str]:
    return [str(file) for file in files_in_use(folder) if text in content(file)]


def content(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_bytes().decode(errors="replace")
    return ""


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (404, "MANIFEST_UNKNOWN", Reason.IMAGE_UNAVAILABLE),
        (404, "NAME_UNKNOWN", Reason.IMAGE_UNAVAILABLE),
        (403, "DENIED", Reason.IMAGE_UNAVAILABLE),
        (500, "UNKNOWN", Reason.PROVISION_FAILED),
        (503, "UNAVAILABLE", Reason.PROVISION_FAILED),
    ],
)
async def test_an_answer_about_the_image_is_the_jobs_failure_and_a_broken_registry_the_worlds(
    jobs: ContainerJobs, registry: ImageRegistry, status: int, error: str, reason: Reason
) -> None:
    registry.status, registry.error = status, error
    outcome = await jobs.run("true", container=ContainerSpec(image=f"{registry.address}/acme/build:1"))
    assert (outcome.reason, registry.address in outcome.detail) == (reason, True)


async def test_a_network_is_there_for_trusted_code_that_asks_for_it_alone(
    jobs: ContainerJobs, podman: PodmanStore
) -> None:
    if not networks_can_be_made():
        pytest.skip("not asked for: this machine may not make networks")
    gateway = podman.run("network", "inspect", "podman", "--format", "{{(index .Subnets 0).Gateway}}").strip()
    with socket.socket() as listening:
        # The network's bridge is there once a container uses it.
        listening.setsockopt(socket.IPPROTO_IP, FREEBIND, 1)
        listening.bind((gateway, 0))
        listening.listen()
        connect = f"exec 3<>/dev/tcp/{gateway}/{listening.getsockname()[1]}; echo reached"
        for access, trusted, reaches in (
            (NetworkAccess.DEFAULT, True, True),
            (NetworkAccess.DEFAULT, False, False),
            (NetworkAccess.NONE, True, False),
            (None, True, False),
        ):
            jobs.output.clear()
            spec = ContainerSpec(image=IMAGE, network=access)
            outcome = await jobs.run(connect, container=spec, request={"trusted": trusted})
            assert (outcome.state is JobState.SUCCEEDED, "reached\n" in jobs.text) == (reaches, reaches)


LIMITS = """
of() { cat "/sys/fs/cgroup/$1" 2>/dev/null || cat "/sys/fs/cgroup/$2"; }
echo memory $(of memory/memory.limit_in_bytes memory.max)
echo processes $(of pids/pids.max pids.max)
echo cpu $(of cpu/cpu.cfs_quota_us cpu.max)
echo swap $(of memory/memory.memsw.limit_in_bytes memory.swap.max)
"""


async def test_the_kernel_has_the_limits_of_a_job(jobs: ContainerJobs) -> None:
    await jobs.run(LIMITS, container=ContainerSpec(image=IMAGE, memory_bytes=48 * MIB, cpus=0.5))
    found = dict(line.split(" ", 1) for line in jobs.text.splitlines() if line.count(" ") >= 1)
    assert found["memory"] == str(48 * MIB)
    assert found["processes"] == str(PROCESSES)
    assert found["cpu"] in {"50000", "50000 100000"}
    assert MEMORY > 48 * MIB


WITHOUT = """
for word; do
  shift
  case $word in {option}) skipped=1; continue ;; esac
  [ "$skipped" ] && { skipped=; continue; }
  set -- "$@" "$word"
done
exec {podman} "$@"
"""


@pytest.mark.parametrize(
    ("option", "limit"),
    [("--memory|--memory-swap", "memory"), ("--cpus", "cpu"), ("--pids-limit", "pids")],
)
async def test_a_job_does_not_run_without_a_limit_that_the_runtime_ignored(
    podman: PodmanStore, tmp_path: Path, option: str, limit: str
) -> None:
    path = replaced_podman(tmp_path, WITHOUT.replace("{option}", option))
    async with container_jobs(podman, tmp_path, PATH=path) as jobs:
        outcome = await jobs.run("echo never")
        assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
        assert f"did not set the limit of {limit}" in outcome.detail
        assert "never" not in jobs.text


def replaced_podman(folder: Path, script: str) -> str:
    """A PATH on which a script comes before the real podman."""
    (folder / "bin").mkdir()
    (folder / "bin" / "podman").write_text(f"#!/bin/sh\n{script.replace('{podman}', '/usr/bin/podman')}\n")
    (folder / "bin" / "podman").chmod(0o755)
    return f"{folder}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@NEEDS_OTHER_USER
def test_without_root_and_a_group_of_its_own_no_orchestrator_runs_jobs_without_limits() -> None:
    start = (
        "import asyncio, os; from solstice_orchestrator.worker.executors.containers import podman_launcher as launcher; "
        "asyncio.run(launcher.open_podman(os.environ, launcher.ContainerRules()))"
    )
    command = [*AS_OTHER_USER, sys.executable, "-c", start]
    ran = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "ConfigurationError: EXECUTOR=podman: without root, " in ran.stderr
    assert "control group" in ran.stderr


async def test_a_job_calls_podman_three_times_and_a_name_that_moved_once_more(
    podman: PodmanStore, tmp_path: Path
) -> None:
    name, calls = "localhost/moving:1", tmp_path / "calls"
    path = replaced_podman(tmp_path, f'echo "$*" >> {calls}; exec {{podman}} "$@"')
    async with container_jobs(podman, tmp_path, PATH=path) as jobs:

        async def calls_of(container: ContainerSpec) -> list[str]:
            calls.write_text("")
            await jobs.outcome_of("echo it is ${BASH_VERSION:-sh}", container=container)
            return [line.split()[1] for line in calls.read_text().splitlines()]

        podman.run("tag", IMAGE, name)
        await calls_of(ContainerSpec(image=name))
        # What it costs beyond `podman run` is the price of each of them.
        assert await calls_of(ContainerSpec(image=name)) == ["create", "start", "rm"]
        assert "it is sh\n" not in jobs.text
        podman.run("tag", SHELL_ONLY, name)
        assert await calls_of(ContainerSpec(image=name)) == ["image", "create", "cp", "start", "rm"]
        assert "it is sh\n" in jobs.text
        podman.run("rmi", name)
        gone = ContainerSpec(image=name, pull=PullPolicy.NEVER)
        assert await calls_of(gone) == ["image"]
        service = with_service("exec sleep 1000")
        await calls_of(service)
        # One call removes both containers, though both monitors were killed.
        assert await calls_of(service) == ["create", "create", "container", "start", "start", "rm"]
        assert podman.containers() == []


async def test_the_time_of_a_job_begins_when_its_container_runs(podman: PodmanStore, tmp_path: Path) -> None:
    slowly = 'case " $* " in *" start "*) sleep 3 ;; esac; exec {podman} "$@"'
    async with container_jobs(podman, tmp_path, PATH=replaced_podman(tmp_path, slowly)) as jobs:
        outcome = await jobs.run("echo it ran", timeout_seconds=3.0)
        assert outcome.state is JobState.SUCCEEDED, outcome
        assert outcome.provisioning_seconds is not None
        assert outcome.provisioning_seconds > 3


async def test_a_podman_that_is_gone_is_the_worlds_failure(podman: PodmanStore, tmp_path: Path) -> None:
    path = replaced_podman(tmp_path, 'exec {podman} "$@"').partition(":")[0]
    async with container_jobs(podman, tmp_path, PATH=path) as jobs:
        (tmp_path / "bin" / "podman").unlink()
        outcome = await jobs.run("echo never")
        assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.MACHINE_FAILED)
        assert "never" not in jobs.text


async def test_a_podman_that_is_killed_while_it_finds_an_image_is_the_worlds_failure(
    podman: PodmanStore, tmp_path: Path
) -> None:
    killed = 'case "$*" in *"image inspect"*) kill -9 $$ ;; esac; exec {podman} "$@"'
    async with container_jobs(podman, tmp_path, PATH=replaced_podman(tmp_path, killed)) as jobs:
        outcome = await jobs.run("echo never", container=ContainerSpec(image=IMAGE, pull=PullPolicy.NEVER))
        assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
        assert "never" not in jobs.text


async def test_a_runtime_that_is_gone_is_the_worlds_failure(podman: PodmanStore, tmp_path: Path) -> None:
    path = replaced_podman(tmp_path, 'exec {podman} --runtime "${0%podman}runtime" "$@"')
    runtime = tmp_path / "bin" / "runtime"
    runtime.write_text('#!/bin/sh\nexec runc "$@"\n')
    runtime.chmod(0o755)
    async with container_jobs(podman, tmp_path, PATH=path) as jobs:
        assert (await jobs.run("echo it runs")).state is JobState.SUCCEEDED
        runtime.write_text("#!/bin/sh\nexit 1\n")
        outcome = await jobs.run("echo never")
        assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
        assert "never" not in jobs.text


@pytest.mark.parametrize(
    "facts", [None, "", "{}"], ids=["before it noted anything", "while it noted", "at its end"]
)
@pytest.mark.parametrize("service", [False, True], ids=["alone", "beside a service"])
async def test_a_start_of_a_container_killed_at_any_moment_is_the_worlds_failure(
    jobs: ContainerJobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: str | None,
    *,
    service: bool,
) -> None:
    start = tmp_path / "start.py"
    noted = "" if facts is None else f"open(sys.argv[1] + '/facts', 'w').write({facts!r})"
    start.write_text(f"import os, signal, sys\n{noted}\nos.kill(os.getpid(), signal.SIGKILL)\n")
    # The same module, with another program in place of its own.
    names = {"__file__": str(start), "PREFIX": container_step.PREFIX, "EXIT_FILE": container_step.EXIT_FILE}
    monkeypatch.setattr(podman_launcher, "container_step", SimpleNamespace(**names))
    container = with_service("sleep 1000") if service else ContainerSpec(image=IMAGE)
    outcome = await jobs.run("echo never", container=container)
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED), outcome
    assert "never" not in jobs.text


BREAKS = """#!/bin/sh
# It makes the first container, and not that of the service.
case " $* " in *" create "*) test ! -e {made} || exit 1; touch {made} ;; esac
exec runc "$@"
"""


async def test_a_runtime_that_is_gone_when_a_service_starts_is_the_worlds_failure(
    podman: PodmanStore, tmp_path: Path
) -> None:
    path = replaced_podman(tmp_path, 'exec {podman} --runtime "${0%podman}runtime" "$@"')
    runtime = tmp_path / "bin" / "runtime"
    runtime.write_text(BREAKS.format(made=tmp_path / "made"))
    runtime.chmod(0o755)
    async with container_jobs(podman, tmp_path, PATH=path) as jobs:
        outcome = await jobs.run("echo never", container=with_service("sleep 1000"))
        assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.PROVISION_FAILED)
        assert "of the service 'db' did not start" in outcome.detail
        assert "never" not in jobs.text


async def test_a_service_that_fills_the_disk_of_the_store_fails_its_job_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    # Memory of this disk counts for the service that writes there.
    rules = replace(RULES, memory_bytes=512 * MIB)
    with small_disk(tmp_path / "disk") as disk, podman_store(disk / "store", (IMAGE, SERVER)) as store:
        async with container_jobs(store, tmp_path, rules) as jobs:
            fills = with_service("cat /dev/zero > /data/filling || exit 4")
            outcome = await jobs.run("sleep 1000", container=fills)
            assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.SERVICE_DIED)
            # Podman has no space to note the exit code.
            assert outcome.detail.startswith("the service 'db' ended ")
            # It has freed what it took.
            assert (await jobs.run("echo it runs")).state is JobState.SUCCEEDED


def with_service(run: str) -> ContainerSpec:
    return ContainerSpec(image=IMAGE, services=(ServiceSpec(name="db", image=SERVER, env={"RUN": run}),))


async def test_a_store_without_space_is_the_worlds_failure(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, podman_store(disk / "store") as store:
        async with container_jobs(store, tmp_path) as jobs:
            assert (await jobs.run("echo it runs")).state is JobState.SUCCEEDED
            fill(disk / "filling")
            outcome = await jobs.run("echo never")
            assert (outcome.state, outcome.reason) == (JobState.ERRORED, Reason.MACHINE_FAILED)
            assert "never" not in jobs.text
            (disk / "filling").unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", 0) as filling:
        for size in (1024 * 1024, 4096, 1):
            with contextlib.suppress(OSError):
                while filling.write(b"x" * size):
                    pass
