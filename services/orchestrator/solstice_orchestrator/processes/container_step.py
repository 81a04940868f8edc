"""Run one step in a job's container, and end as it ends.

Run as `python -I -S container_step.py DIRECTORY NUMBER SCRIPT` with the standard library alone, on the worker's machine,
as a child of the supervisor. With `start` and a command in place of NUMBER and SCRIPT, it starts the container, in which
`/bin/sh -s` is process 1:

* `DIRECTORY/control` is a pipe with a name, its standard input. The container runs what is written there;
* `DIRECTORY/verdict` is its standard output. It gets one line when a step has ended, and no step inherits it;
* its standard error is ours, the log pipe, and that of every step: their order is true;
* `DIRECTORY/pid` names process 1 of the container, and `DIRECTORY/monitor` its monitor, podman's `conmon`;
* `DIRECTORY/services/NAME/pid` that of a service, without which no step goes on.

With `limits`, it checks that a container has the limits in `DIRECTORY/limits`.

The step's environment are our variables whose names begin with JOB_, without that prefix: the job chooses their names,
and programs on this machine must not obey them. What only this side knows is written into `DIRECTORY/facts` as JSON:
`starting` until the container has started, `unstarted` (an exit code) when it did not, `unlimited` when it lacks a limit
of those in `DIRECTORY/limits`, `unproxied` when the proxy of an untrusted job did not start, `gone` when it ended before the step had, and `killed`, the processes in it that the
kernel has ended for lack of memory. The job can reach neither the directory nor this process.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

PREFIX: Final = "JOB_"
START_SECONDS: Final = 120.0
"""As any other call of podman has (`podman.py`): a busy machine has needed more than a minute."""
BREAK_SECONDS: Final = 0.3
ENDING_SECONDS: Final = 1.0
"""How long a process without a limit may take to end: with version 1, one that ends has left its groups before."""
GROUPS: Final = Path("/sys/fs/cgroup")
PROXY_FILE: Final = "egress.json"
"""The file in DIRECTORY that names the command of a job's proxy: `egress_proxy.py`."""
SERVICES: Final = Path(__file__).with_name("container_services.py")
VERDICT: Final = "solstice"
EXIT_FILE: Final = "exit-file"
"""The file in DIRECTORY that names the one in which the container's monitor would write how that ended."""
PREPARE: Final = (
    "umask 022; trap 'while set -- /proc/[0-9]*; test $# -gt 1; do sleep 0.1 || break; done; exit 143' TERM; "
    "trap : INT HUP QUIT\n"
)
"""Asked to end, process 1 waits for all others: its own end kills them."""


class Gone(NamedTuple):
    """A container ended before the step had."""

    end: int


def main(directory: Path, what: str, *words: str) -> int:
    if what == "start":
        _end(directory, 0, starting=True)
        failed = _start(directory, list(words))
        return _end(directory, 1, unstarted=failed) if failed else _check(directory) or _open_proxy(directory)
    return _check(directory) if what == "limits" else _run(directory, what, *words)


def _check(directory: Path) -> int:
    _find_exit_file(directory)
    unlimited = _unlimited(directory)
    return _end(directory, 1, unlimited=unlimited) if unlimited else _end(directory, 0)


def _find_exit_file(directory: Path) -> None:
    """Note where the container's monitor will write how that ended.

    Its command line says it: conmon(8).
    """
    with contextlib.suppress(OSError, ValueError):
        monitor = int((directory / "monitor").read_text())
        words = Path(f"/proc/{monitor}/cmdline").read_bytes().split(b"\0")
        folder, container = (words[words.index(option) + 1] for option in (b"--exit-dir", b"-c"))
        (directory / EXIT_FILE).write_bytes(folder + b"/" + container)


def _run(directory: Path, number: str, script: str) -> int:
    services = _services(directory)
    verdicts = os.open(directory / "verdict", os.O_RDONLY | os.O_NONBLOCK)
    try:
        container = int((directory / "pid").read_text())
        memory = _memory_events(container)
        ended = os.pidfd_open(container)
    except (OSError, ValueError):
        return _end(directory, 1, gone=True)
    code = PREPARE + _code(number, script)
    ends = [ended, *services]
    status = _status(directory, number, code.encode("utf-8", "surrogateescape"), verdicts, ends)
    if status and (died := _died(status, services)):
        note = (sys.executable, "-I", "-S", str(SERVICES), str(directory), "died", died)
        return subprocess.run(note, check=False).returncode
    if isinstance(status, Gone):
        return _end(directory, 1, gone=True, killed=_killed(memory))
    return _end(directory, status, killed=_killed(memory)) if status else 0


def _start(directory: Path, start: list[str]) -> int:
    """Start the container, with its messages in the log; return the exit code."""
    with (directory / "control").open("rb", 0) as control, (directory / "verdict").open("wb", 0) as verdict:
        process = subprocess.Popen(start, stdin=control, stdout=verdict, env=_own_variables())
        try:
            return process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait() or 1


def _open_proxy(directory: Path) -> int:
    """Start the proxy of a job that has one, and wait until it listens."""
    if not (directory / PROXY_FILE).exists():
        return 0
    command = json.loads((directory / PROXY_FILE).read_text())["command"]
    # It stays behind, as a child of the supervisor.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_own_variables()
    )
    with process.stdout or contextlib.nullcontext() as ready:
        is_ready = ready and select.select([ready], [], [], START_SECONDS)[0] and os.read(ready.fileno(), 1)
    return 0 if is_ready else _end(directory, 1, unproxied=True)


def _own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def _code(number: str, script: str) -> str:
    """Return what the container's shell runs for a step."""
    variables = "".join(
        f"export {name.removeprefix(PREFIX)}={_quoted(value)}; "
        for name, value in os.environ.items()
        if name.startswith(PREFIX)
    )
    shell = f"bash --noprofile --norc -eo pipefail {script}"
    return (
        f"( {variables}if command -v bash >/dev/null 2>&1; then exec {shell}; else exec /bin/sh -e {script}; fi ) "
        f"</dev/null >&2; echo {VERDICT} {number} $?\n"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _services(directory: Path) -> dict[int, str]:
    """Return the job's services by descriptors that can be read at their ends."""
    services = {}
    for file in directory.glob("services/*/pid"):
        try:
            ended = os.pidfd_open(int(file.read_text()))
        except OSError:
            # One that can be read now.
            ended = os.open(os.devnull, os.O_RDONLY)
        services[ended] = file.parent.name
    return services


def _died(status: int | Gone, services: dict[int, str]) -> str | None:
    """Return the name of the service whose end failed the step."""
    if isinstance(status, Gone):
        return services.get(status.end)
    # Its connections break a moment before its end is known.
    readable, _, _ = select.select([*services], [], [], BREAK_SECONDS) if services else ((), (), ())
    return services[readable[0]] if readable else None


def _status(directory: Path, number: str, code: bytes, verdicts: int, ends: list[int]) -> int | Gone:
    """Send the code, and return its step's status, or which of `ends` came before."""
    control = os.open(directory / "control", os.O_WRONLY | os.O_NONBLOCK)
    received = b""
    while True:
        readable, writable, _ = select.select([verdicts, *ends], [control] if code else [], [])
        if verdicts in readable:
            with contextlib.suppress(BlockingIOError):
                received = (received + os.read(verdicts, 65536))[-65536:]
            *lines, received = received.split(b"\n")
            for line in lines:
                beginning, _, status = line.rpartition(b" ")
                if beginning == f"{VERDICT} {number}".encode() and status.isdigit():
                    return min(int(status), 255)
        elif ended := [end for end in ends if end in readable]:
            return Gone(ended[0])
        if writable:
            with contextlib.suppress(BlockingIOError):
                code = code[os.write(control, code[:4096]) :]


def _unlimited(directory: Path) -> str:
    """Return the name of a limit that the container should have, and does not have.

    None is missing from a container that has ended, which the first step will notice.
    """
    limits = json.loads((directory / "limits").read_text())
    try:
        container = int((directory / "pid").read_text())
        ended = os.pidfd_open(container)
    except (OSError, ValueError):
        return ""
    try:
        missing = _missing(container, limits)
        has_ended = missing and select.select([ended], [], [], ENDING_SECONDS)[0]
    finally:
        os.close(ended)
    return "" if has_ended else missing


def _missing(container: int, limits: dict[str, float]) -> str:
    groups = _groups(container)
    for name, most in limits.items() if groups else ():
        try:
            limit = _limit(groups, name)
        except OSError:
            limit = float("inf")
        if not 0 <= limit <= most:
            return name
    return ""


def _limit(groups: dict[str, Path], name: str) -> float:
    """Return a limit that the kernel enforces; infinity when there is none."""
    unified = name not in groups
    if name != "cpu":
        file = "pids.max" if name == "pids" else "memory.max" if unified else "memory.limit_in_bytes"
        return _number((groups[""] if unified else groups[name]) / file)
    if unified:
        quota, period = (groups[""] / "cpu.max").read_text().split()
        return float("inf") if quota == "max" else int(quota) / int(period)
    quota_of_period = _number(groups["cpu"] / "cpu.cfs_quota_us")
    return quota_of_period / _number(groups["cpu"] / "cpu.cfs_period_us")


def _number(file: Path) -> float:
    text = file.read_text().strip()
    return float("inf") if text == "max" else int(text)


def _groups(pid: int) -> dict[str, Path]:
    """Return the control groups of a running process by controller.

    That of version 2 has the empty name.
    """
    groups = {}
    with contextlib.suppress(OSError, StopIteration):
        # With version 1, a thread that has ended seems to be in no group: the first one, while others run on.
        running = next(task for task in Path(f"/proc/{pid}/task").iterdir() if _runs(task))
        for line in (running / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for name in controllers.split(","):
                groups[name] = GROUPS / name / path.lstrip("/")
    return groups


def _runs(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}


def _memory_events(pid: int) -> Path | None:
    """Return the file that counts what the kernel kills for lack of memory."""
    groups = _groups(pid)
    if "memory" in groups:
        return groups["memory"] / "memory.oom_control"
    return groups[""] / "memory.events" if "" in groups else None


def _killed(memory: Path | None) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in memory.read_text().splitlines() if memory else ():
            name, count = line.split()
            if name == "oom_kill":
                return int(count)
    return 0


def _end(directory: Path, status: int, **facts: int | str) -> int:
    # A job may have filled the disk: that changes nothing about its end.
    with contextlib.suppress(OSError):
        (directory / "facts").write_text(json.dumps(facts))
    return status


if __name__ == "__main__":
    # The supervisor ends this process too when it asks all of them to end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
