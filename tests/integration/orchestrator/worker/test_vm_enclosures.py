"""What encloses QEMU, beside its own sandbox: control groups, a network, a user."""

import asyncio
import json
import os
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from solstice_common.errors import ConfigurationError
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import NetworkAccess
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.processes import vm_enclosure
from solstice_orchestrator.worker.executors.containers.container_groups import ROOT, groups_left
from solstice_orchestrator.worker.executors.vms import enclosures, qemu_launcher, vm_directory
from solstice_orchestrator.worker.executors.vms.enclosures import ROUTER
from solstice_orchestrator.worker.executors.vms.vm_directory import PATH
from solstice_orchestrator.worker.executors.vms.vm_limits import VmLimits
from tests.integration.orchestrator.worker.test_guest_limits import CHECKOUT, closed_folders
from tests.repositories import Repository
from tests.servers.apt import apt_can_install, apt_install
from tests.servers.vm_image import vm_image, why_no_vm
from tests.vm_jobs import MEMORY, vm_jobs, vm_rules

MIB = 1024 * 1024
NOBODY_UID = 65534
ANY = "0.0.0.0"  # noqa: S104  nothing listens there: it is another name of this machine
ANSWER = b"reached\n"
UNPRIVILEGED = (
    "setpriv",
    f"--reuid={NOBODY_UID}",
    f"--regid={NOBODY_UID}",
    "--clear-groups",
    "--no-new-privs",
)
OPENS = """
count=$1
shift
memory=$(mktemp -d)
mount -t tmpfs none "$memory"
for number in $(seq "$count"); do
    mkdir "$memory/upper$number" "$memory/work$number"
    mount -t overlay -o "lowerdir=$1,upperdir=$memory/upper$number,workdir=$memory/work$number" overlay "$1"
    shift
done
while [ "$1" != setpriv ]; do
    chmod o+rx "$1"
    shift
done
exec "$@"
"""
"""Lets other users enter folders, in a mount namespace of its own: the count of mounts, those folders, all folders, a command."""
EATS = "a=$(head -c 40000000 /dev/zero | tr '\\0' x); sleep 1000"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # On Debian as root QEMU is installed, so that CI runs this; elsewhere a machine may have none.
    if missing := why_no_vm():
        pytest.skip(f"not asked for: there is no VM, since {missing}")
    return vm_image(tmp_path_factory.mktemp("vm") / "image")


@pytest.fixture
def _root() -> None:
    # CI runs as root; only root may give QEMU another user and control groups of version 1.
    if os.geteuid() != 0:
        pytest.skip("not asked for: it needs root")


@pytest.fixture
def _router() -> None:
    # On Debian as root it is installed, so that CI runs this.
    if shutil.which(ROUTER[0], path=PATH) is None:
        if not apt_can_install():
            pytest.skip(f"not asked for: there is no {ROUTER[0]}, and none can be installed")
        apt_install(ROUTER[0])


@pytest.mark.usefixtures("_root")
async def test_qemu_is_bounded_has_no_network_and_is_a_user_of_its_own(image: Path, tmp_path: Path) -> None:
    async with vm_jobs(image, tmp_path) as jobs:
        running = asyncio.ensure_future(jobs.run("echo begun; sleep 1000", timeout_seconds=60.0))
        await jobs.wrote("begun\n")
        (vm,) = jobs.vms
        assert network_of(vm) != network_of(os.getpid())
        status = status_of(vm)
        assert int(status["Uid"].split()[0]) >= 1_000_000
        assert (status["CapEff"].strip("0"), status["NoNewPrivs"], status["Seccomp"]) == ("", "1", "2")
        found = {name: limit_of(vm, name) for name in ("memory", "cpu", "pids")}
        assert found == {"memory": MEMORY + 384 * MIB, "cpu": 100_000, "pids": 256}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert groups_left(jobs.workspaces.directory.name) == []


def network_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.replace("\t", " ").split(": ", 1) for line in lines if ": " in line.replace("\t", " "))


def limit_of(pid: int, controller: str) -> int:
    """The limit that the kernel has for a process, in either version of control groups."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            file = {"memory": "memory.limit_in_bytes", "cpu": "cpu.cfs_quota_us", "pids": "pids.max"}[
                controller
            ]
            return int((ROOT / controller / path.lstrip("/") / file).read_text())
    (unified,) = [
        line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line[:3] == "0::"
    ]
    file = {"memory": "memory.max", "cpu": "cpu.max", "pids": "pids.max"}[controller]
    return int((ROOT / unified.lstrip("/") / file).read_text().split()[0])


@pytest.mark.usefixtures("_root")
async def test_a_qemu_that_grows_beyond_its_limit_is_the_jobs_failure(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that says it is ready, and grows then, as a guest that attacks it may make it do.
    ready = 'read -r hello <&"$fd"; echo ready >&"$fd"; read -r step <&"$fd"'
    fake = f'[[ "$*" =~ id=control,fd=([0-9]+) ]]; fd=${{BASH_REMATCH[1]}}; {ready}; {EATS}'
    monkeypatch.setattr(vm_directory, "qemu_command", lambda *_: ("bash", "-c", fake, "qemu"))
    monkeypatch.setattr(vm_directory, "limits_of", lambda *_: VmLimits(memory_bytes=24 * MIB, cpus=1))
    async with vm_jobs(image, tmp_path) as jobs:
        outcome = await jobs.run("echo never")
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.OUT_OF_MEMORY), outcome


def enclosed(*command: str, **words: object) -> subprocess.CompletedProcess[str]:
    parts = {"groups": [], "namespace": True, "router": [], "user": None, "extra_groups": [], **words}
    program = (sys.executable, "-I", "-S", vm_enclosure.__file__, json.dumps(parts), *command)
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"groups": ["/nowhere"]}, "No such file"),
        ({"router": ["/nowhere/slirp"]}, "/nowhere/slirp could not be started"),
        ({"router": ["false"]}, "its network could not be connected"),
    ],
)
def test_what_cannot_be_enclosed_does_not_start(words: dict[str, object], sentence: str) -> None:
    ended = enclosed("echo", "never", **words)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_an_allowed_network_without_its_program_is_refused(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enclosures, "ROUTER", ("no-such-program",))
    with pytest.raises(
        ConfigurationError, match=r"VM_NETWORK=default: it needs slirp4netns .* could not be started"
    ):
        await qemu_launcher.open_qemu(vm_rules(image, network=NetworkAccess.DEFAULT), "tcg")


@contextmanager
def server(address: str) -> Iterator[int]:
    """A server at an address of this machine, on a free port."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(ANSWER)

    with socketserver.ThreadingTCPServer((address, 0), Answer) as opened:
        threading.Thread(target=opened.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield opened.server_address[1]
        finally:
            opened.shutdown()


def own_address() -> str:
    """An address of this machine that others reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.connect(("192.0.2.1", 9))
        except OSError:
            # A machine of CI has one.
            pytest.skip("not asked for: this machine has no address beside that of its loopback interface")
        return str(udp.getsockname()[0])


@pytest.mark.usefixtures("_router")
async def test_an_allowed_network_reaches_other_machines_and_not_this_ones_loopback(
    image: Path, tmp_path: Path
) -> None:
    outside = own_address()
    with server(outside) as open_port, server("127.0.0.1") as closed_port:
        # Root of a VM sends what it likes: also packets to addresses that no machine should see on a wire.
        as_routed = (
            "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet; ip addr del 127.0.0.1/8 dev lo; "
            "ip route del local 127.0.0.0/8 dev lo table local; ip route add 127.0.0.0/8 via 10.0.2.2; "
        )
        tries = "".join(
            f"echo try {address}; nc -w 2 {address} {closed_port} </dev/null\n"
            for address in ("10.0.2.2", "10.0.2.3", "10.0.3.2", "10.0.3.3", "10.0.3.100", ANY)
        )
        async with vm_jobs(image, tmp_path, network=NetworkAccess.DEFAULT) as jobs:
            outcome = await jobs.run(
                f"set +e; echo open; nc -w 9 {outside} {open_port} </dev/null; {tries} "
                f"{as_routed} echo try 127.0.0.1; nc -w 2 127.0.0.1 {closed_port} </dev/null; echo end"
            )
    assert outcome.state is JobState.SUCCEEDED, jobs.text
    assert jobs.text.partition("\nopen\n")[2].startswith("reached\ntry 10.0.2.2\n"), jobs.text
    assert jobs.text.count("reached") == 1, jobs.text
    assert jobs.text.endswith("end\n"), jobs.text


@pytest.fixture
def unprivileged_folder(image: Path) -> Iterator[Path]:
    """A folder of a user without rights, with the image."""
    with tempfile.TemporaryDirectory(prefix="solstice-user-") as folder:
        shutil.copytree(image, Path(folder) / "image")
        Repository(Path(folder) / "repository").commit({"hello.txt": "hello\n"})
        subprocess.run(["chown", "-R", f"{NOBODY_UID}:{NOBODY_UID}", folder], check=True)
        yield Path(folder)


@pytest.mark.usefixtures("_root")
async def test_an_orchestrator_without_root_runs_jobs_in_vms_and_says_what_is_not_bounded(
    unprivileged_folder: Path, image: Path
) -> None:
    work, repository = unprivileged_folder / "work", unprivileged_folder / "repository"
    commit = (repository / ".git/refs/heads/main").read_text().strip()
    closed = closed_folders()
    # Those above all others. What is opened in them is a copy in memory.
    covered = [each for each in closed if not any(other in each.parents for other in closed)]
    peer = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "--propagation", "private", "sh", "-ec", OPENS, "sh", str(len(covered))),
        *map(str, (*covered, *closed)),
        *(*UNPRIVILEGED, sys.executable, "-m", "tests.integration.orchestrator.worker.vm_peer"),
        *(
            str(work),
            str(unprivileged_folder / "image"),
            f"file://{repository}",
            commit,
            "cat hello.txt; id -u; echo ended",
        ),
        cwd=CHECKOUT,
        env={**os.environ, "HOME": str(unprivileged_folder), "TMPDIR": str(unprivileged_folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    written, _ = await peer.communicate()
    text = written.decode()
    assert peer.returncode == 0, text
    assert "hello\n0\nended\n" in text
    assert "succeeded completed\n" in text
    assert "artifact hello: files: 1, bytes: 2048" in text
    assert "vm.enclosed" in text
    assert "memory, cpu, pids: " in text
    assert [path.name for path in work.iterdir()] == []
