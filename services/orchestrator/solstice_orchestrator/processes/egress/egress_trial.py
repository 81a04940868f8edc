"""Try whether the proxy of an untrusted job can start on this machine."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from solstice_orchestrator.processes.egress import egress_proxy
from solstice_orchestrator.processes.egress.egress_facts import FILE

_NETWORK: Final = """
import ctypes, fcntl, os, socket, struct, sys
unshare = ctypes.CDLL(None, use_errno=True).unshare
# Without root, there is a right to a network where there is one to its users.
if unshare(0x40000000) and unshare(0x50000000):
    sys.exit(f"no network of its own: {os.strerror(ctypes.get_errno())}")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.write(1, b"ready")
os.read(0, 1)
"""
"""A process in the place of a job's container: with a network of its own, in which loopback is up (netdevice(7))."""


def egress_problem(plan: Mapping[str, Any], seconds: float) -> str | None:
    """Return why a proxy with this plan (`egress_file`) does not start here.

    It is started beside a network of its own, and both end.
    """
    with tempfile.TemporaryDirectory(prefix="solstice-egress-") as folder:
        place = Path(folder)
        (place / FILE).write_text(json.dumps(plan))
        network = (sys.executable, "-I", "-S", "-c", _NETWORK)
        with _started(network, place / "network.log", seconds) as (process, problem):
            if problem:
                return problem
            (place / "pid").write_text(str(process.pid))
            with _started(egress_proxy.proxy_command(place), place / "proxy.log", seconds) as (_, failed):
                return failed


@contextmanager
def _started(
    command: Sequence[str], log: Path, seconds: float
) -> Iterator[tuple["subprocess.Popen[bytes]", str | None]]:
    """Run a process; yield it, and why it is not ready."""
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    with process:
        try:
            yield process, _problem(process, log, seconds)
        finally:
            process.kill()


def _problem(process: "subprocess.Popen[bytes]", log: Path, seconds: float) -> str | None:
    if not process.stdout or not select.select([process.stdout], [], [], seconds)[0]:
        return f"nothing happened within {seconds:g} s"
    if os.read(process.stdout.fileno(), 1):
        return None
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended with exit code {process.wait()}"
