"""Only the file that owns a descriptor closes it, with many supervisors at work."""

import asyncio
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from solstice_orchestrator.processes.children import exit_code, pipe_reader, pipe_writer, run, start
from solstice_orchestrator.worker.executors.supervisor_handle import open_supervisor
from solstice_orchestrator.worker.workspaces import Workspace
from tests.builders import execution, job
from tests.executor_harness import NEEDS_PROC, child_processes

SUPERVISORS = 60
AT_ONCE = 6
THREADS = 3


@contextmanager
def opening_files(directory: Path) -> Iterator[list[str]]:
    """Threads that open files all the time, and their errors with own descriptors."""
    wrong: list[str] = []
    stop = threading.Event()

    def work(path: Path) -> None:
        path.write_text("mine")
        identity = path.stat().st_ino
        while not stop.is_set():
            foreign = [os.open(path, os.O_RDWR | os.O_CLOEXEC) for _ in range(4)]
            for descriptor in foreign:
                try:
                    if os.fstat(descriptor).st_ino != identity:
                        wrong.append(f"{descriptor} is another file now")
                    os.close(descriptor)
                except OSError as error:
                    wrong.append(f"{descriptor}: {error}")

    threads = [
        threading.Thread(target=work, args=(directory / f"file-{n}",), name=f"opener {n}")
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def workspace(root: Path) -> Workspace:
    return Workspace(
        root=root, source=root / "source", home=root / "home", temporary=root / "tmp", scripts=root / "steps"
    )


@NEEDS_PROC
def test_supervisors_close_no_descriptor_of_others(tmp_path: Path) -> None:
    async def supervise(turns: asyncio.Semaphore) -> None:
        async with turns, open_supervisor(execution(job()), workspace(tmp_path)) as keeper:
            assert await keeper.is_ready()

    async def many() -> None:
        turns, open_before = asyncio.Semaphore(AT_ONCE), descriptors()
        await asyncio.gather(*(supervise(turns) for _ in range(SUPERVISORS)))
        assert descriptors() <= open_before

    before = child_processes()
    with opening_files(tmp_path) as wrong:
        uvloop.run(many())
    assert wrong == []
    assert child_processes() <= before
    assert zombies() == set()


def descriptors() -> set[tuple[str, str]]:
    """The pipes that we hold."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            if stat.S_ISFIFO(path.stat().st_mode):
                found.add((path.name, str(path.readlink())))
        except OSError:
            continue
    return found


def zombies() -> set[str]:
    """Our children that ended and were not collected."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if parent == str(os.getpid()) and state == "Z":
            found.add(path.parent.name)
    return found


@NEEDS_PROC
def test_who_is_cancelled_while_a_child_ends_leaves_no_zombie() -> None:
    async def cancel() -> None:
        running = asyncio.ensure_future(run("sleep", "0.2"))
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    uvloop.run(cancel())
    assert zombies() == set()


def test_what_is_not_read_stops_the_child_and_costs_no_memory() -> None:
    async def read_one_byte_of_much() -> None:
        process = start(
            ("sh", "-c", "yes & wait"), Path("/"), {"PATH": os.defpath},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with pipe_reader(process.stdout) as output:
            await output.read(1)
            await asyncio.sleep(0.3)
            # One piece, then all that the reader held: a limit of 64 KiB is exceeded once, by one more piece at most.
            assert len(await output.read(2**24)) <= 4 * 64 * 1024
            os.killpg(process.pid, 9)
            while await output.read(2**16):
                pass
        await exit_code(process)

    uvloop.run(read_one_byte_of_much())


def test_more_than_a_pipe_holds_is_sent_in_order_without_waiting() -> None:
    plan = b"".join(b"%07d\n" % number for number in range(200_000))

    async def send() -> bytes:
        process = start(
            ("cat",), Path("/"), {"PATH": os.defpath},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        received = b""
        with pipe_reader(process.stdout) as output, pipe_writer(process.stdin) as tell:
            tell(plan[:-8])
            tell(plan[-8:])
            while len(received) < len(plan):
                received += await output.read(2**16)
        await exit_code(process)
        return received

    assert uvloop.run(send()) == plan


def test_what_is_sent_to_one_that_has_ended_is_dropped() -> None:
    async def send() -> None:
        process = start(
            ("true",), Path("/"), {"PATH": os.defpath},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with pipe_reader(process.stdout) as output, pipe_writer(process.stdin) as tell:
            await output.read()
            await exit_code(process)
            tell(b"stop\n" * 100_000)
            await asyncio.sleep(0.05)
            tell(b"stop\n")
        tell(b"stop\n")

    uvloop.run(send())
