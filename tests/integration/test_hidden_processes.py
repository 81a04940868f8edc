"""What a service was given is not to be read by another process of its user, such as a job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import PROC

NOBODY = 65534
PLANTED = "planted-heron-7731"
SERVICES = {
    "orchestrator": "solstice_orchestrator.settings.OrchestratorSettings",
    "forge-integration": "solstice_forge.settings.ForgeSettings",
    "up": "solstice_cli.up.UpSettings",
}
SERVICE = f"""
import ctypes, importlib, os, sys
module, _, name = sys.argv[1].rpartition(".")
from solstice_common.process import hide
settings = getattr(importlib.import_module(module), name)()
assert "planted" in settings.amqp_url
if os.geteuid() == 0:
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a process is that was started by this user
print("open", flush=True)
sys.stdin.readline()
hide(settings)
print("AMQP_URL" in os.environ, "GITHUB_WEBHOOK_SECRET" in os.environ, flush=True)
sys.stdin.readline()
"""


def read_by_a_job(pid: int, name: str) -> bytes | None:
    """What another process of the service's user finds in that file of /proc; None when it is refused."""
    looked = subprocess.run(
        ["/usr/bin/head", "-c", "1000000", f"/proc/{pid}/{name}"],
        cwd="/",
        capture_output=True,
        check=False,
        # Root may read everything: both are somebody else's then.
        user=NOBODY if os.geteuid() == 0 else None,
        group=NOBODY if os.geteuid() == 0 else None,
        extra_groups=[] if os.geteuid() == 0 else None,
    )
    return None if looked.returncode else looked.stdout


@PROC
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
