"""Start the services of a job's container, and wait until they are ready.

Run as `python -I -S container_services.py DIRECTORY SETUP...` with the standard library alone, on the worker's machine, as a
child of the supervisor. SETUP is the command that starts the job's container; the services join its network. With `died` and
the name of a service in its place, this notes how that service has ended. `DIRECTORY/services.json` says what to start, and `DIRECTORY/services/NAME` has what is of one service:

* `log` is a pipe with a name, its standard output and error;
* `pid` names process 1 of its container, and `limits` are its limits, as for the job's own container.

What only this side knows is written into `DIRECTORY/facts` as JSON, with the name of the `service` to which it happened:
`unstarted` (an exit code), `unlimited`, `died` (its exit code), `unready` (the seconds that it had), and `unclosed` when the
network could not be closed. No process of the job can reach the directory.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

FILE: Final = "services.json"
DIED: Final = "died"
PREFIX: Final = "JOB_"
START_SECONDS: Final = 120.0
PAUSE_SECONDS: Final = 0.25
PROBE_SECONDS: Final = 10.0
NOTED_SECONDS: Final = 5.0
"""How long podman may take to note the end of a container."""
NOTED_PAUSE_SECONDS: Final = 0.05
CLONE_NEWNET: Final = 0x40000000
STEP: Final = Path(__file__).with_name("container_step.py")
CLOSED: Final = ("-w", "-I", "INPUT", "!", "-i", "lo", "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP")
"""Nothing from outside begins a connection: only the job itself reaches its services."""


class ServiceFailure(Exception):
    """A service does not let the steps begin."""

    def __init__(self, service: str, **facts: int | str) -> None:
        super().__init__(service)
        self.facts = {"service": service, **facts}


def main(directory: Path, *words: str) -> int:
    plan = json.loads((directory / FILE).read_text())
    try:
        if words[0] == DIED:
            raise _failure_of(words[1], plan)
        if code := subprocess.run(words, check=False).returncode:
            return code
        _start_all(directory, plan)
    except ServiceFailure as failure:
        with contextlib.suppress(OSError):
            (directory / "facts").write_text(json.dumps(failure.facts))
        return 1
    return 0


def _start_all(directory: Path, plan: dict[str, Any]) -> None:
    job = _process_of(directory)
    if plan["closed"]:
        _close_network(job)
    deadlines, ends = [], {}
    for service in plan["services"]:
        own = directory / "services" / service["name"]
        _start(own, plan["podman"], service)
        deadlines.append(time.monotonic() + service["seconds"])
        with contextlib.suppress(OSError):
            ends[service["name"]] = os.pidfd_open(_process_of(own))
        if service["name"] not in ends:
            raise _failure_of(service["name"], plan)
    watch = _Watch(plan, ends)
    for service, deadline in zip(plan["services"], deadlines, strict=True):
        while not (_accepts(job, service["port"]) and watch.succeeds(service, deadline)):
            if time.monotonic() >= deadline:
                raise ServiceFailure(service["name"], unready=service["seconds"])
            watch.wait(PAUSE_SECONDS)
    watch.wait(0)


class _Watch:
    """Waits, unless a service ends."""

    def __init__(self, plan: dict[str, Any], ends: dict[str, int]) -> None:
        self._plan, self._ends = plan, ends

    def wait(self, seconds: float, *files: int) -> None:
        """Wait so long, or until one of the files can be read.

        Raises ServiceFailure when a service has ended.
        """
        readable, _, _ = select.select([*self._ends.values(), *files], [], [], max(0.0, seconds))
        for name, ended in self._ends.items():
            if ended in readable:
                raise _failure_of(name, self._plan)

    def succeeds(self, service: dict[str, Any], deadline: float) -> bool:
        """Whether the command of `ready` does, if there is one."""
        if service["ready"] is None:
            return True
        command = [*self._plan["podman"], "exec", service["container"], "/bin/sh", "-c", service["ready"]]
        nowhere = subprocess.DEVNULL
        probe = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=_own_variables())
        ended = os.pidfd_open(probe.pid)
        try:
            self.wait(min(PROBE_SECONDS, deadline - time.monotonic()), ended)
        finally:
            if probe.poll() is None:
                probe.kill()
            code = probe.wait()
            os.close(ended)
        return code == 0


def _start(own: Path, podman: list[str], service: dict[str, Any]) -> None:
    """Start a service, with its messages in its log, and check its limits."""
    with (own / "log").open("wb", 0) as log:
        process = subprocess.Popen(
            [*podman, "start", service["container"]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_own_variables(),
        )
        try:
            code = process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    if code:
        raise ServiceFailure(service["name"], unstarted=code)
    if subprocess.run((sys.executable, "-I", "-S", str(STEP), str(own), "limits"), check=False).returncode:
        facts = json.loads((own / "facts").read_text())
        raise ServiceFailure(service["name"], unlimited=facts["unlimited"])


def _failure_of(name: str, plan: dict[str, Any]) -> ServiceFailure:
    """Return the failure of a service that has ended.

    Its exit code is -1 when podman does not know it.
    """
    (container,) = (each["container"] for each in plan["services"] if each["name"] == name)
    question = [*plan["podman"], "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", container]
    # Not `podman wait`, which may wait for podman's own clearing up, for twenty seconds.
    deadline, code = time.monotonic() + NOTED_SECONDS, -1
    while code < 0 and time.monotonic() < deadline:
        inspected = subprocess.run(
            question, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=_own_variables()
        )
        state, _, number = inspected.stdout.decode().strip().partition(" ")
        if state in {"exited", "stopped"}:
            code = int(number)
        else:
            time.sleep(NOTED_PAUSE_SECONDS)
    return ServiceFailure(name, died=code)


def _own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def _process_of(directory: Path) -> int:
    try:
        return int((directory / "pid").read_text())
    except (OSError, ValueError):
        return 0


def _close_network(job: int) -> None:
    programs = ("iptables", "ip6tables") if Path("/proc/sys/net/ipv6").exists() else ("iptables",)
    for program in programs:
        command = ("nsenter", f"--net=/proc/{job}/ns/net", program, *CLOSED)
        try:
            ended = subprocess.run(command, capture_output=True, check=False, env=_own_variables())
        except OSError as error:
            raise ServiceFailure("", unclosed=str(error)) from None
        if ended.returncode:
            raise ServiceFailure("", unclosed=f"{program}: {ended.stderr.decode(errors='replace')[-300:]}")


def _accepts(job: int, port: int | None) -> bool:
    """Whether the job would get a connection to the port, if there is one."""
    if port is None:
        return True
    child = os.fork()
    if child == 0:
        code = 1
        # The network of a process is that of all that it does from now on, so a process of its own looks.
        with contextlib.suppress(OSError), open(f"/proc/{job}/ns/net", "rb") as network:  # noqa: PTH123  quickly
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) == 0:
                socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
                code = 0
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    # The supervisor ends this process too when it asks all of them to end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
