"""Run the virtual machine (VM) of a job, and pass on what its guest says.

Run as `python -I -S vm_host.py DIRECTORY` with the standard library alone, as the setup command of a supervisor. It
ends with 0 once the guest is ready for steps, and leaves a process behind that owns QEMU. With `trial`, it ends the VM
when it is ready, and leaves nothing. Everything is in DIRECTORY:

* `vm.json` says what to start (`MachineSpec` in vm_plan.py);
* `disk` is the working directory of QEMU. The archive of the workspace is written there, and QEMU keeps the changes of
  this attempt to the image there, in a file without a name;
* `steps` is a socket. `vm_step.py` asks there for one step, and gets its status;
* `facts` is what only this side knows, as JSON: `starting` until the guest is ready, `unready` (why it never was, and
  whether for lack of disk space, `full`), `gone` (the exit code of QEMU) with `words` when QEMU ended before a step had, and `killed`, the processes that the
  guest's kernel has ended for lack of memory.

The guest (guest_agent.sh) has two ports. On `control` we send it lines, and it answers in lines: `ready`, `broken WHY`,
`end NAME STATUS KILLED`. On `log` it sends the output of all steps, with a mark after each one, so that a step has only
ended here when all that it wrote is in the log. The job may be root there, and may send anything: it can change how it
ends, and nothing else. No read or write here waits for the guest.

QEMU does not hear SIGTERM. This process does: it asks the guest to end all processes, waits for that, and kills QEMU.
"""

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

OUTPUT: Final = 2
CHANNELS: Final = ("control", "log", "console")
PIECE_BYTES: Final = 64 * 1024
LOG_BYTES: Final = 64 * 1024
"""How much of the log is held here; more stays in the guest, which waits."""
WRITE_BYTES: Final = 4096
"""What a pipe takes without waiting when select(2) says that it can be written to: PIPE_BUF of pipe(7)."""
TAIL_BYTES: Final = 2048
LINE_BYTES: Final = 4096
STALLED_SECONDS: Final = 10.0
"""How long the end of a step waits for its mark in a log that does not move."""
EXIT_SECONDS: Final = 5.0
NUMBER_LENGTH: Final = 7
PADDING: Final = 512
"""Each archive of an initramfs begins at a multiple of 4 (docs.kernel.org/driver-api/early-userspace/buffer-format.html)."""
END_FIELDS: Final = 3
ENDS_ALL: Final = "term"
"""The name under which the guest says that all processes have ended."""
SHELL: Final = "bash --noprofile --norc -eo pipefail"
UNHEARD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(directory: str, *trial: str) -> int:
    os.chdir(directory)
    _note(starting=True)
    if trial:
        Vm(json.loads(Path("vm.json").read_text()), None).run()
        return 0
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        return 0 if os.read(readable, 1) else 1
    os.close(readable)
    Vm(json.loads(Path("vm.json").read_text()), writable).run()
    return 0


class Vm:
    """QEMU, and the state of what it sends."""

    def __init__(self, spec: dict[str, Any], started: int | None) -> None:
        self._spec, self._started = spec, started
        self._token = os.urandom(16).hex()
        self._sockets: dict[str, socket.socket] = {}
        self._open_ends: dict[int, str] = {}
        """What may still come, by descriptor."""
        self._process: subprocess.Popen[bytes] | None = None
        self._to_guest = b""
        self._lines = b""
        self._log = LogOfSteps(self._token)
        self._tails = {"console": b"", "words": b""}
        self._ends: dict[str, tuple[int, int]] = {}
        """The status of each step that has ended, and the processes that were killed for lack of memory."""
        self._step: tuple[str, socket.socket] | None = None
        self._moved = 0.0
        """When the log moved for the last time, or a step ended."""
        self._ready = self._is_ending = self._left = False
        """Whether the guest is ready, all of it was asked to end, and QEMU has closed everything."""
        self._why, self._full = "", False
        """Why it was not ready, and whether that was for lack of disk space."""

    def run(self) -> None:
        signals, wakeup = os.pipe()
        for descriptor in (signals, wakeup):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (*UNHEARD, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        with socket.socket(socket.AF_UNIX) as steps:
            # A short name, in the working directory: a longer one may not fit into an address.
            steps.bind("steps")
            steps.listen(8)
            try:
                _pack(self._spec)
                self._start()
                self._serve(steps, signals)
            except OSError as error:
                self._why, self._full = self._why or str(error), error.errno == errno.ENOSPC
            finally:
                self._end()

    def _start(self) -> None:
        own, far = {}, {}
        for name in CHANNELS:
            own[name], far[name] = socket.socketpair()
            own[name].setblocking(False)
        opened = [_opened(int(number), path) for number, path in self._spec["opened"].items()]
        # QEMU inherits the mask. Otherwise a job that is asked to end would have no time for that.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, UNHEARD)
        try:
            self._process = subprocess.Popen(
                [*self._spec["command"], *_chardevs(far)],
                cwd="disk",
                env=self._spec["env"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[*(end.fileno() for end in far.values()), *opened],
                # It must not be ended by a file that grows too large: the guest gets an error then.
                restore_signals=False,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for end in far.values():
                end.close()
            for descriptor in opened:
                os.close(descriptor)
        self._sockets = own
        self._open_ends = {end.fileno(): name for name, end in own.items()}
        if self._process.stderr:
            self._open_ends[self._process.stderr.fileno()] = "words"
        self._to_guest = f"hello {self._token}\n".encode()

    def _serve(self, steps: socket.socket, signals: int) -> None:
        """Pass everything on until all has ended, or should."""
        deadline = time.monotonic() + self._spec["seconds"]
        while self._open_ends or self._log.waiting:
            readable, writable = self._movable(steps, signals)
            if signals in readable and os.read(signals, 64).strip(bytes([signal.SIGCHLD])):
                self._end_all()
                if not self._ready:
                    return
            self._move(readable, writable)
            if steps in readable:
                self._begin(steps)
            if not self._ready and (self._why or time.monotonic() > deadline):
                self._why = self._why or f"the VM was not ready within {self._spec['seconds']:g} s"
                return
            if self._has_ended(ENDS_ALL) or (self._ready and self._started is None):
                return
            self._answer()
        self._left = True

    def _movable(
        self, steps: socket.socket, signals: int
    ) -> tuple[list[int | socket.socket], list[int | socket.socket]]:
        """Wait a moment, and return what can be read and written."""
        reading: list[int | socket.socket] = [
            end
            for end, name in self._open_ends.items()
            if name != "log" or len(self._log.waiting) < LOG_BYTES
        ]
        writing: list[int | socket.socket] = [
            *([OUTPUT] if self._log.waiting else []),
            *(end for end, name in self._open_ends.items() if name == "control" and self._to_guest),
        ]
        readable, writable, _ = select.select([signals, steps, *reading], writing, [], 1.0)
        return readable, writable

    def _move(self, readable: list[int | socket.socket], writable: list[int | socket.socket]) -> None:
        for end, name in list(self._open_ends.items()):
            if end in readable and not self._receive(name, end):
                del self._open_ends[end]
            if end in writable:
                self._send()
        if OUTPUT in writable:
            self._log.move()
            self._moved = time.monotonic()

    def _receive(self, name: str, descriptor: int) -> bool:
        """Take what came from QEMU or its guest; False: nothing more comes."""
        try:
            piece = os.read(descriptor, PIECE_BYTES)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if name == "log":
            self._log.feed(piece)
            self._moved = time.monotonic()
        elif name == "control":
            *lines, rest = (self._lines + piece).split(b"\n")
            self._lines = rest[-LINE_BYTES:]
            for line in lines:
                self._hear(line[:LINE_BYTES].decode(errors="replace").split(" ", 1))
        else:
            self._tails[name] = (self._tails[name] + piece)[-TAIL_BYTES:]
        return bool(piece)

    def _hear(self, line: list[str]) -> None:
        word, rest = line[0], line[-1]
        if word == "broken" and not self._ready:
            self._why = f"the VM could not be set up: {rest}"
        elif word == "ready" and not self._ready:
            self._ready = True
            _note()
            # The guest has read them, and they count as files of the job.
            Path("disk/initramfs").unlink(missing_ok=True)
            os.truncate("disk/job.tar", 0)
            if self._started is None:
                self._is_ending = True
            else:
                os.write(self._started, b"1")
        elif word == "end":
            fields = rest.split(" ")
            # Only names that are awaited: a guest must not fill the memory here.
            if len(fields) == END_FIELDS and fields[0] in self._awaited and all(map(_is_number, fields[1:])):
                self._ends[fields[0]] = min(int(fields[1]), 255), int(fields[2])
                self._moved = time.monotonic()

    @property
    def _awaited(self) -> set[str]:
        return {ENDS_ALL, *([self._step[0]] if self._step else [])}

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._to_guest = self._to_guest[self._sockets["control"].send(self._to_guest[:PIECE_BYTES]) :]

    def _end_all(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._to_guest += b"term\n"

    def _begin(self, steps: socket.socket) -> None:
        client, _ = steps.accept()
        words = b""
        while piece := client.recv(PIECE_BYTES):
            words += piece
        step = json.loads(words)
        code = _code(step)
        self._step = str(step["number"]), client
        self._to_guest += f"step {step['number']} {len(code)}\n".encode() + code

    def _has_ended(self, name: str) -> bool:
        """Whether it has ended, and all that it wrote is in the log."""
        if name not in self._ends or self._log.waiting:
            return False
        return name == self._log.mark or time.monotonic() > self._moved + STALLED_SECONDS

    def _answer(self) -> None:
        if self._step and self._has_ended(self._step[0]):
            status, killed = self._ends[self._step[0]]
            if status and killed:
                _note(killed=killed)
            with self._step[1] as client, contextlib.suppress(OSError):
                client.sendall(json.dumps({"status": status}).encode())
            self._step = None

    def _end(self) -> None:
        """End QEMU, and note why it ended before it was asked to."""
        code = self._code_of_qemu()
        if not self._ready and not self._is_ending:
            ended = "QEMU did not start" if code is None else f"QEMU ended with exit code {code}"
            _note(unready=self._why or ended, full=self._full, **self._texts())
        elif not self._is_ending:
            _note(gone=code, **self._texts())
        if self._step:
            self._step[1].close()

    def _code_of_qemu(self) -> int | None:
        """Return the exit code of QEMU; None: killed here, or never started."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(EXIT_SECONDS if self._left else 0)
        self._process.kill()
        self._process.wait()
        return None

    def _texts(self) -> dict[str, str]:
        return {name: tail.decode(errors="replace").strip() for name, tail in self._tails.items()}


class LogOfSteps:
    """Finds the marks of ended steps in the guest's log, and passes on the rest."""

    def __init__(self, token: str) -> None:
        self._mark = b"\0" + token.encode() + b" "
        self._held = b""
        """The beginning of what may be a mark."""
        self.waiting = b""
        self.mark = ""
        """The name of the last step whose mark has come."""

    def feed(self, piece: bytes) -> None:
        rest = self._held + piece
        self._held = b""
        while True:
            before, found, after = rest.partition(self._mark)
            if not found:
                break
            self.waiting += before
            name, ended, behind = after[:LINE_BYTES].partition(b"\n")
            if not ended and len(after) < LINE_BYTES:
                self._held = found + after
                return
            if ended:
                self.mark = name.decode(errors="replace")
                rest = behind + after[LINE_BYTES:]
            else:
                self.waiting += found
                rest = after
        begun = rest.rfind(b"\0", max(0, len(rest) - len(self._mark) + 1))
        if begun >= 0 and self._mark.startswith(rest[begun:]):
            rest, self._held = rest[:begun], rest[begun:]
        self.waiting += rest

    def move(self) -> None:
        """Write some of what waits to the log."""
        self.waiting = self.waiting[os.write(OUTPUT, self.waiting[:WRITE_BYTES]) :]


def _opened(number: int, path: str) -> int:
    """Open a file to be read as the descriptor of that number."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(descriptor, number, inheritable=False)
    os.close(descriptor)
    return number


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < NUMBER_LENGTH


def _chardevs(ends: dict[str, socket.socket]) -> Iterator[str]:
    for name, end in ends.items():
        yield from ("-chardev", f"socket,id={name},fd={end.fileno()}")


def _code(step: dict[str, Any]) -> bytes:
    """Return what the guest's shell runs for a step."""
    script = step["script"]
    lines = [
        *(f"export {name}={_quoted(value)}" for name, value in step["env"].items()),
        f"cd {_quoted(step['directory'])} || exit 1",
        f"if command -v bash >/dev/null 2>&1; then exec {SHELL} {script}; else exec /bin/sh -e {script}; fi",
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _pack(spec: dict[str, Any]) -> None:
    """Write the archive of the workspace: directories by their places in the guest."""
    with tarfile.open("disk/job.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        for place, directory in spec["directories"].items():
            archive.add(directory, place, filter=_of_root)
    for name, parts in spec["files"].items():
        with open(f"disk/{name}", "wb") as whole:  # noqa: PTH123  its name is one word
            for part in parts:
                content = Path(part).read_bytes()
                whole.write(content + bytes(-len(content) % PADDING))


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _note(**facts: object) -> None:
    # The disk may be full: that changes nothing about the end of the job.
    with contextlib.suppress(OSError):
        Path("facts").write_text(json.dumps(facts))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
