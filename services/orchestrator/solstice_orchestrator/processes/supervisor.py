"""The process that stands between the orchestrator and a job: it runs the steps and lets nothing of them escape.

Run as `python -I -S supervisor.py [GROUP]`, with the standard library alone, in a session of its own:

* GROUP is the directory of the job's control group, which the supervisor joins, and thereby all that it starts;
* standard input is the control pipe: one line of JSON with the plan, `go` for each step that may begin, and `stop` to
  end the job with grace. When it closes, the orchestrator is gone or wants an end at once: everything is killed;
* standard output is the verdict pipe, one JSON object per line: `ready`, a `step` before each step, which then waits
  for its `go` (all that was written before it is in the log by then), and one `end`. No step inherits this pipe, and it
  has no words for a failure of ours, so that a job which forged it could say nothing but how the job itself ended;
* standard error is the log pipe; standard output and error of every step are this one pipe, so their order is true.

The supervisor is the child subreaper (prctl(2)) of the steps: daemons that fork twice and leave their session become
its children again, and are found through /proc and killed, again and again until none is left. Processes that a step
leaves in the background live until the job ends. Where there is no /proc (macOS), the process groups of the steps are
all that is reached.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

PR_SET_DUMPABLE: Final = 4
PR_SET_CHILD_SUBREAPER: Final = 36
CONTROL, VERDICT, OUTPUT = 0, 1, 2
MAX_PLAN_BYTES: Final = 16 * 1024 * 1024


class ControlClosed(Exception):
    """The orchestrator is gone."""


def main() -> int:
    """Run the plan; the exit code says nothing, the verdict does."""
    _become_reaper()
    _join(sys.argv[1:])
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
        _kill_everything(groups)
        _say(event="end", **end)
    return 0


def _kill_everything(groups: list[int]) -> None:
    """Leave no process of the job; `groups` are the process groups of its steps."""
    if not any(process_ids()):
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
    kill_descendants(os.getpid())


class _Signals:
    """A pipe that becomes readable when a child has ended; polite requests to end ourselves go unheard."""

    def __enter__(self) -> Self:
        self.readable, self._writable = os.pipe()
        os.set_blocking(self.readable, False)
        os.set_blocking(self._writable, False)
        # Handlers, not SIG_IGN: what is ignored stays ignored in the steps, what is handled does not.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda *_: None)
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
    """What the orchestrator tells us."""

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
    def stop_asked(self) -> bool:
        return b"stop\n" in self._received

    @property
    def steps_allowed(self) -> int:
        """How many steps may have begun."""
        return self._received.count(b"go\n")


class _Job:
    """The steps, one after the other, within their times."""

    def __init__(self, plan: dict[str, Any], control: _Control, signals: _Signals, groups: list[int]) -> None:
        self._plan, self._control, self._signals, self._groups = plan, control, signals, groups
        self._deadline = time.monotonic() + float(plan["timeout"])

    def run(self) -> dict[str, Any]:
        for number, step in enumerate(self._plan["steps"]):
            end = self._allowed(number) or self._step(step)
            if end is not None:
                return {"step": number, **end}
        return {"how": "completed"}

    def _allowed(self, number: int) -> dict[str, Any] | None:
        """Say that the step is about to begin; how the job ends before it does, None when it may."""
        _say(event="step", number=number)
        while self._control.steps_allowed <= number:
            if self._control.stop_asked:
                self._end(None)
                return {"how": "stopped"}
            if time.monotonic() >= self._deadline:
                self._end(None)
                return {"how": "timed_out", "scope": "job"}
            self._wait(self._deadline)
        return None

    def _step(self, step: dict[str, Any]) -> dict[str, Any] | None:
        """How the job ends with this step; None when the next one may begin."""
        deadline, scope = self._deadline, "job"
        if step["timeout"] is not None and time.monotonic() + step["timeout"] < deadline:
            deadline, scope = time.monotonic() + float(step["timeout"]), "step"
        try:
            child = subprocess.Popen(
                step["argv"],
                cwd=self._plan["directory"],
                env={**self._plan["env"], **step["env"]},
                stdin=subprocess.DEVNULL,
                stdout=OUTPUT,
                stderr=OUTPUT,
                start_new_session=True,
                umask=0o022,
            )
        except (OSError, ValueError) as error:
            return {"how": "unstartable", "detail": str(error)}
        self._groups.append(child.pid)
        while True:
            status = self._reap(child)
            if status is not None:
                return None if status == 0 else {"how": "failed", "status": status}
            if self._control.stop_asked:
                self._end(child)
                return {"how": "stopped"}
            if time.monotonic() >= deadline:
                self._end(child)
                return {"how": "timed_out", "scope": scope}
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        """Sleep until a child ended, the orchestrator spoke, or it is time."""
        timeout = max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select([CONTROL, self._signals.readable], [], [], timeout)
        if CONTROL in readable:
            self._control.receive()
        if self._signals.readable in readable:
            self._signals.empty()

    def _reap(self, child: "subprocess.Popen[bytes] | None") -> int | None:
        """Reap what ended; the exit status of the step's shell (negative: a signal) once it did, 0 without a shell."""
        for pid, status in reap():
            if child and pid == child.pid:
                child.returncode = os.waitstatus_to_exitcode(status)
        return child.returncode if child else 0

    def _end(self, child: "subprocess.Popen[bytes] | None") -> None:
        """Ask every process to end, wait for the grace; what is left is killed by the caller. `child` is the step's shell."""
        grace = time.monotonic() + float(self._plan["grace"])
        _signal_group(child, signal.SIGTERM)
        signal_all(descendants(os.getpid()), signal.SIGTERM)
        while time.monotonic() < grace:
            if self._reap(child) is not None and not descendants(os.getpid()):
                return
            self._wait(min(grace, time.monotonic() + 0.1))
        _signal_group(child, signal.SIGKILL)


def _signal_group(child: "subprocess.Popen[bytes] | None", number: int) -> None:
    """The shell of a step and what stayed in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if child:
            os.killpg(child.pid, number)


def reap() -> Iterator[tuple[int, int]]:
    """Children that have ended, with their wait status; they are buried by this."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def descendants(ancestor: int) -> set[int]:
    """The process ids below `ancestor`, zombies left out; empty where there is no /proc."""
    parents: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for pid in process_ids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold anything, also parentheses and spaces: proc(5).
            state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
            parents.setdefault(int(parent), []).append(pid)
            if state in {b"Z", b"X"}:
                zombies.add(pid)
    found: set[int] = set()
    todo = [ancestor]
    while todo:
        for pid in parents.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found - zombies


def process_ids() -> Iterator[int]:
    """Every process there is; none where there is no /proc."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208  names are all we want
            if name.isdigit():
                yield int(name)


def signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_descendants(ancestor: int) -> None:
    """Kill everything below `ancestor`, until nothing is left that could fork again."""
    patience = time.monotonic() + 20.0
    while time.monotonic() < patience:
        below = descendants(ancestor)
        if not below:
            break
        # Stopped first: what does not run does not fork while we look at its brothers.
        signal_all(below, signal.SIGSTOP)
        signal_all(below, signal.SIGKILL)
        if ancestor == os.getpid():
            for _ in reap():
                pass
        time.sleep(0.002)
    if ancestor == os.getpid():
        for _ in reap():
            pass


def _become_reaper() -> None:
    """Orphans below come to us, and the same user's processes cannot look into us (Linux; elsewhere neither)."""
    if not sys.platform.startswith("linux"):
        return
    become_subreaper()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _join(group: list[str]) -> None:
    """Enter the control group, if there is one; the kernel may refuse it, and then the job goes without."""
    for path in group:
        with contextlib.suppress(OSError):
            Path(path, "cgroup.procs").write_bytes(b"0")


def become_subreaper() -> None:
    """Become the parent of every process below whose own parent ends; Linux alone."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _say(**words: Any) -> None:
    os.write(VERDICT, json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
