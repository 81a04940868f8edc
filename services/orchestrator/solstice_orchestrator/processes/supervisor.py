"""The supervisor process of a job: it runs the steps and kills all their processes.

Run as `python -I -S supervisor.py [GROUP]`, or forked by `supervisor_starter.py`, with the standard library alone, in a
session of its own:

* GROUP is the directory of the job's control group, which the supervisor joins, and so does all that it starts;
* standard input is the control pipe: one line of JSON with the plan, `go` for each step that may begin, and `stop` to
  end the job with grace. With `setup` in the plan, the first step has so many seconds, and the job's time begins after
  it. When the pipe closes, the orchestrator is gone or wants an end at once: all processes are killed;
* standard output is the verdict pipe, one JSON object per line: `ready`, a `step` before each step, which then waits
  for its `go` (all earlier output is in the log by then), `failed` of one that does not end the job, and one `end`. No
  step inherits this pipe. It has no words for an infrastructure failure, so a job that forged it could only say how the
  job itself ended;
* standard error is the log pipe; standard output and error of every step are this one pipe, so their order is true.

The supervisor is the child subreaper (prctl(2)) of the steps: daemons that fork twice and leave their session become
its children again, and are found through /proc and killed until none is left. Processes that a step leaves in the
background live until the job ends. Where there is no /proc (macOS), only the process groups of the steps are killed.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

PR_SET_DUMPABLE: Final = 4
PR_SET_CHILD_SUBREAPER: Final = 36
CONTROL, VERDICT, OUTPUT = 0, 1, 2
MAX_PLAN_BYTES: Final = 16 * 1024 * 1024
START_SECONDS: Final = 30.0
"""How long to try again to start a step for which there is no process: another job may have taken all for a moment."""
START_PAUSE_SECONDS: Final = 0.2
_WALL: Final = 0x40000000
"""Lets waitpid(2) see children of every kind; the `os` module has no name for it."""
_PRCTL: Final = ctypes.CDLL(None, use_errno=True).prctl if sys.platform.startswith("linux") else None
"""Found once, before supervisors are forked from the process that imports this."""


class ControlClosed(Exception):
    """The orchestrator is gone."""


def supervise(group: list[str], remove: Callable[[str], object] = lambda _: None) -> int:
    """Run the plan; the verdict says how it ended.

    The exit code is 0 only when no process of the job is left. Then `remove` gets the directory that the plan names.
    """
    # The kernel is to end processes of the job before others when memory is short: proc_pid_oom_score_adj(5).
    _write("/proc/self/oom_score_adj", b"500")
    become_subreaper()
    hide_memory()
    join(group)
    with _Signals() as signals:
        _say(event="ready")
        control = _Control()
        groups: list[int] = []
        try:
            plan = control.plan()
            end = _Job(plan, control, signals, groups).run()
        except ControlClosed:
            _kill_everything(groups)
            return 1
        is_alone = _kill_everything(groups)
        _say(event="end", **end)
    if is_alone and plan.get("remove"):
        remove(plan["remove"])
    return 0 if is_alone else 1


def _kill_everything(groups: list[int]) -> bool:
    """Kill every process of the job, and return whether surely none is left.

    `groups` are the process groups of its steps. All processes of the job descend from this one, because it is their
    subreaper: without a child it has no descendants either, and nothing is searched.
    """
    if _is_childless():
        return True
    if not any(process_ids()):
        _signal_groups(groups, signal.SIGKILL)
    kill_descendants(os.getpid())
    return _is_childless()


def _is_childless() -> bool:
    """Reap ended children, and return whether this process is a subreaper without any child."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        while os.waitpid(-1, os.WNOHANG | _WALL)[0]:
            pass
    except ChildProcessError:
        return True
    return False


class _Signals:
    """A pipe that becomes readable when a signal comes: a child has ended."""

    def __enter__(self) -> Self:
        self.readable, self._writable = os.pipe()
        os.set_blocking(self.readable, False)
        os.set_blocking(self._writable, False)
        signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.readable)
        os.close(self._writable)

    def empty(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.readable, 4096):
                pass


class _Control:
    """Reads the control pipe: the plan and the orchestrator's commands."""

    def __init__(self) -> None:
        self._received = b""

    def plan(self) -> dict[str, Any]:
        while b"\n" not in self._received:
            self.receive()
        line, _, self._received = self._received.partition(b"\n")
        plan: dict[str, Any] = json.loads(line)
        return plan

    def receive(self) -> None:
        piece = os.read(CONTROL, 65536)
        if not piece or len(self._received) > MAX_PLAN_BYTES:
            raise ControlClosed
        self._received += piece

    @property
    def stop_requested(self) -> bool:
        return b"stop\n" in self._received

    @property
    def steps_allowed(self) -> int:
        """How many steps the orchestrator has allowed to begin."""
        return self._received.count(b"go\n")


class _Job:
    """Runs the steps in order, within their time limits."""

    def __init__(self, plan: dict[str, Any], control: _Control, signals: _Signals, groups: list[int]) -> None:
        self._plan, self._control, self._signals, self._groups = plan, control, signals, groups
        self._begun = 0
        self._deadline = time.monotonic() + float(plan["timeout"]) + float(plan.get("setup", 0))

    def run(self) -> dict[str, Any]:
        failure: dict[str, Any] = {}
        for number, step in enumerate(self._plan["steps"]):
            if step.get("when", "success") not in {"always", "failed" if failure else "success"}:
                continue
            end = self._allowed(number) or self._step(step)
            if number == 0 and self._plan.get("setup"):
                self._deadline = time.monotonic() + float(self._plan["timeout"])
            if end is None:
                continue
            end["step"] = number
            if step.get("ends") or end.get("scope") != "step":
                return end
            if step.get("may_fail"):
                _say(event="failed", **end)
            else:
                failure = failure or end
        return failure or {"how": "completed"}

    def _allowed(self, number: int) -> dict[str, Any] | None:
        """Announce the step and wait for its `go`; return None when it may begin.

        Otherwise return how the job ends before it.
        """
        _say(event="step", number=number)
        self._begun += 1
        while self._control.steps_allowed < self._begun:
            is_stopped = self._control.stop_requested
            if is_stopped or time.monotonic() >= self._deadline:
                self._end(None)
                return {"how": "stopped"} if is_stopped else {"how": "timed_out", "scope": "job"}
            self._wait(self._deadline)
        _lead_session()
        return None

    def _step(self, step: dict[str, Any]) -> dict[str, Any] | None:
        """Run the step; return how it ends the job, None if the job continues."""
        deadline, scope = self._deadline, "job"
        if step["timeout"] is not None and time.monotonic() + step["timeout"] < deadline:
            deadline, scope = time.monotonic() + float(step["timeout"]), "step"
        child = None
        until = min(deadline, time.monotonic() + START_SECONDS)
        while child is None:
            try:
                child = self._started(step)
            except (OSError, ValueError) as error:
                if not isinstance(error, BlockingIOError) or time.monotonic() >= until:
                    return {"how": "unstartable", "scope": "step", "detail": str(error)}
                if self._control.stop_requested:
                    self._end(None)
                    return {"how": "stopped"}
                self._wait(min(until, time.monotonic() + START_PAUSE_SECONDS))
        self._groups.append(child.pid)
        while True:
            status = self._reap(child)
            if status is not None:
                # Where it is isolated, a signal ended the process that waits for it: nothing can follow.
                scope = "job" if status < 0 and self._plan.get("isolated") else "step"
                return None if status == 0 else {"how": "failed", "status": status, "scope": scope}
            if self._control.stop_requested:
                self._end(child)
                return {"how": "stopped"}
            if time.monotonic() >= deadline:
                self._end(child)
                return {"how": "timed_out", "scope": scope}
            self._wait(deadline)

    def _started(self, step: dict[str, Any]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            step["argv"],
            cwd=self._plan["directory"],
            env={**self._plan["env"], **step["env"]},
            stdin=subprocess.DEVNULL,
            stdout=OUTPUT,
            stderr=OUTPUT,
            start_new_session=True,
            umask=0o022,
        )

    def _wait(self, deadline: float) -> None:
        """Sleep until a child ends, the control pipe is readable, or the deadline comes."""
        timeout = max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select([CONTROL, self._signals.readable], [], [], timeout)
        if CONTROL in readable:
            self._control.receive()
        if self._signals.readable in readable:
            self._signals.empty()

    def _reap(self, child: "subprocess.Popen[bytes] | None") -> int | None:
        """Reap ended children, and return the exit status of the step's shell.

        It is negative for a signal, None while the shell runs, and 0 without a shell.
        """
        for pid, status in reap():
            if child and pid == child.pid:
                child.returncode = os.waitstatus_to_exitcode(status)
        return child.returncode if child else 0

    def _end(self, child: "subprocess.Popen[bytes] | None") -> None:
        """Ask every process to end, and wait for the grace; the caller kills the rest.

        `child` is the step's shell.
        """
        grace = time.monotonic() + float(self._plan["grace"])
        groups = [child.pid] if child else []
        _signal_groups(groups, signal.SIGTERM)
        signal_all(descendants(os.getpid()), signal.SIGTERM)
        while time.monotonic() < grace:
            if self._reap(child) is not None and not descendants(os.getpid()):
                return
            self._wait(min(grace, time.monotonic() + 0.1))
        _signal_groups(groups, signal.SIGKILL)


def _signal_groups(groups: list[int], number: int) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def reap() -> Iterator[tuple[int, int]]:
    """Reap ended children, and yield their process ids and wait statuses."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def descendants(ancestor: int) -> set[int]:
    """Return the process ids below `ancestor`, without zombies; none where there is no /proc."""
    parents: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for pid in process_ids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may contain parentheses and spaces: proc(5).
            state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
            parents.setdefault(int(parent), []).append(pid)
            if state in {b"Z", b"X"}:
                zombies.add(pid)
    pids: set[int] = set()
    todo = [ancestor]
    while todo:
        for pid in parents.get(todo.pop(), ()):
            if pid not in pids:
                pids.add(pid)
                todo.append(pid)
    return pids - zombies


def process_ids() -> Iterator[int]:
    """Yield the ids of all processes; none where there is no /proc."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208  names are all we want
            if name.isdigit():
                yield int(name)


def signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_descendants(ancestor: int) -> None:
    """Kill all processes below `ancestor`, until none is left that could fork."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        below = descendants(ancestor)
        if not below:
            break
        # Stopped first: a stopped process does not fork while we kill the others.
        signal_all(below, signal.SIGSTOP)
        signal_all(below, signal.SIGKILL)
        if ancestor == os.getpid():
            list(reap())
        time.sleep(0.002)
    if ancestor == os.getpid():
        list(reap())


def handle_signals() -> None:
    """Survive SIGTERM and its like, and wake up when a child ends.

    A forked supervisor inherits this.
    """
    # Handlers, not SIG_IGN: steps would inherit ignored signals, but they do not inherit handlers.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)


def _write(path: str, content: bytes) -> None:
    """Write to a file of the kernel, if it is there and may be written."""
    # Not with `pathlib` and `io`, whose memory a forked process would have to copy.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)


def hide_memory() -> None:
    """Hide our memory and descriptors from the user's other processes; Linux alone."""
    if _PRCTL is not None:
        _PRCTL(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _lead_session() -> None:
    """Lead a session of our own, unless this process leads one.

    A forked one has that of the starter. The orchestrator kills children in foreign sessions unless it knows them, as now.
    """
    with contextlib.suppress(PermissionError):
        os.setsid()


def join(group: list[str]) -> None:
    """Enter the job's control group, if it has one and the kernel allows it."""
    for path in group:
        _write(f"{path}/cgroup.procs", b"0")


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends; Linux alone."""
    if _PRCTL is not None:
        _PRCTL(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _say(**words: Any) -> None:
    os.write(VERDICT, json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    handle_signals()
    sys.exit(supervise(sys.argv[1:]))
