"""Another process of the same user, such as a job, cannot read a service's secrets."""

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from solstice_orchestrator.store import open_store
from tests.executor_harness import AS_OTHER_USER, NEEDS_OTHER_USER, NEEDS_PROC, NOBODY_UID
from tests.gated_jobs import GatedJob, all_ended, publish_requests, wait_for_jobs
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.rabbitmq import Vhost

PLANTED = "planted-heron-7731"
SERVICES = {
    "orchestrator": "solstice_orchestrator.settings.OrchestratorSettings",
    "forge-integration": "solstice_forge.settings.ForgeSettings",
    "up": "solstice_cli.up.UpSettings",
}
SERVICE = f"""
import ctypes, importlib, os, sys
module, _, name = sys.argv[1].rpartition(".")
from solstice_common.runtime.hidden_secrets import hide_secrets
settings = getattr(importlib.import_module(module), name)()
assert "planted" in settings.amqp_url
if os.geteuid() == 0:
    os.setgroups([]); os.setgid({NOBODY_UID}); os.setuid({NOBODY_UID})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a process is that was started by this user
print("open", flush=True)
sys.stdin.readline()
hide_secrets(settings)
print("AMQP_URL" in os.environ, "GITHUB_WEBHOOK_SECRET" in os.environ, flush=True)
sys.stdin.readline()
"""


def read_by_a_job(pid: int, name: str) -> bytes | None:
    """The bytes that another process of the same user reads from /proc; None when refused."""
    read = subprocess.run(
        ["/usr/bin/head", "-c", "1000000", f"/proc/{pid}/{name}"],
        cwd="/",
        capture_output=True,
        check=False,
        # Root may read everything: run both as another user.
        user=NOBODY_UID if os.geteuid() == 0 else None,
        group=NOBODY_UID if os.geteuid() == 0 else None,
        extra_groups=[] if os.geteuid() == 0 else None,
    )
    return None if read.returncode else read.stdout


@dataclass(frozen=True, kw_only=True)
class FilesWithRabbitMQ(SharedFiles):
    """Whose broker has a password."""

    amqp_url: str

    @property
    def broker_url(self) -> str:
        return self.amqp_url


READ_SCRIPT = r"""
set +e
look() {
    for name in environ cmdline auxv maps stack io fdinfo/0 task/$1/environ map_files; do
        echo "== $1 $name"; cat /proc/$1/$name
    done
    echo "== $1 mem"; (exec 3< /proc/$1/mem) && echo mem is open
    (exec 3> /proc/$1/mem) && echo mem is open
    for number in $(seq 0 40); do
        (exec 3< /proc/$1/fd/$number) && echo descriptor $number is open
        readlink /proc/$1/fd/$number
    done
    readlink /proc/$1/cwd /proc/$1/exe
}
{
    pid=$PPID
    while [ $pid -gt 1 ]; do
        look $pid
        pid=$(cut -d " " -f 4 /proc/$pid/stat)
    done
    look CONTROL
    grep -a -s -l PLANTED /proc/[0-9]*/environ /proc/[0-9]*/cmdline
    for each in /proc/[0-9]*; do cat $each/environ $each/cmdline; done
} > SEEN 2>&1
true
"""
"""What a job can find in /proc about its parents, about a process that hides nothing, and about all others."""


@contextmanager
def sleeps_openly(planted: str) -> Iterator[int]:
    """A process of the user nobody that other processes of that user can read."""
    with subprocess.Popen([*AS_OTHER_USER, "sleep", "1000"], env={**os.environ, "OPEN": planted}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@NEEDS_PROC
@NEEDS_OTHER_USER
async def test_no_job_reads_what_its_orchestrator_was_given(rabbitmq_vhost: Vhost) -> None:
    """The whole service runs as an unprivileged user, with secrets in its environment."""
    account = urlsplit(rabbitmq_vhost.url).netloc.partition("@")[0]
    planted = f"{PLANTED}-{uuid.uuid4()}"  # the same test may start its orchestrator beside this one
    assert ":" in account
    with tempfile.TemporaryDirectory() as name, sleeps_openly("left-in-the-open") as control:
        place = FilesWithRabbitMQ(directory=Path(name), amqp_url=rabbitmq_vhost.url)
        script = READ_SCRIPT.replace("CONTROL", str(control)).replace("PLANTED", planted)
        script = script.replace("SEEN", str(place.directory / "seen"))
        gated_job = GatedJob(place.directory, f'job "look" {{ step run=#"""\n{script}\n"""# }}')
        for path in (place.directory, *place.directory.rglob("*")):
            os.chown(path, NOBODY_UID, NOBODY_UID)
        with orchestrator(place, before=AS_OTHER_USER, HARBOUR_TOKEN=planted, HOME=name) as service:
            await publish_requests(place, gated_job)
            async with open_store(place.database_url) as store:
                await wait_for_jobs(store, all_ended)
            pid = service.process.pid
            seen = (place.directory / "seen").read_bytes().decode(errors="replace")
    assert f"== {pid} environ" in seen
    assert "left-in-the-open" in seen
    assert planted not in seen
    assert rabbitmq_vhost.url not in seen
    of_ancestors = seen.partition(f"== {control} environ")[0]
    assert of_ancestors.count(" environ") >= 3
    assert account not in of_ancestors
    own_environment = seen.partition(f"== {pid} environ")[2].partition(" environ")[0]
    assert "orchestrator" in own_environment
    assert " is open" not in own_environment


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        ("solstice_orchestrator.cli", "solstice_orchestrator.daemon"),
        ("solstice_forge.cli", "solstice_forge.service"),
        ("solstice_cli.main", "solstice_cli.up"),
    ],
    ids=SERVICES,
)
def test_service_is_hidden_before_it_loads_its_parts(program: str, parts: str) -> None:
    """Its environment is open while Python loads modules, so the large ones come later."""
    code = f"import sys, {program}; print({parts!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@NEEDS_PROC
@pytest.mark.parametrize("settings", SERVICES.values(), ids=SERVICES.keys())
def test_no_process_of_the_same_user_reads_the_environment_or_memory_of_a_service(
    settings: str, tmp_path: Path
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AMQP_URL": f"amqp://user:{PLANTED}@127.0.0.1/",
        "GITHUB_WEBHOOK_SECRET": PLANTED,
    }
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE, settings],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        try:
            assert service.stdout.readline() == b"open\n"
            assert PLANTED.encode() in (read_by_a_job(service.pid, "environ") or b"")
            assert read_by_a_job(service.pid, "maps")
            service.stdin.write(b"\n")
            in_environment = service.stdout.readline().split()
            assert in_environment[0] == b"False"
            assert in_environment[1] == (b"True" if settings.startswith("solstice_orch") else b"False")
            assert [read_by_a_job(service.pid, name) for name in ("environ", "maps", "mem")] == [None] * 3
            assert PLANTED.encode() not in (read_by_a_job(service.pid, "cmdline") or b"")
        finally:
            service.kill()
