"""Real child processes, on both event loops."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from solstice_orchestrator.processes.children import child, side_output

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def in_loop(body: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(body)

    return in_loop


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


async def outputs(command: tuple[str, ...], given: bytes = b"") -> tuple[bytes, bytes, int]:
    async with child(command, Path("/"), {"A": "b"}, given) as started:
        out, err = await asyncio.gather(started.stdout.read(), started.stderr.read())
        return out, err, await started.wait()


def test_what_goes_in_and_what_comes_out(run: Run) -> None:
    code = (
        "import sys, os; print(sys.stdin.read()[::-1], os.environ['A']); sys.stderr.write('e'); sys.exit(3)"
    )
    assert run(outputs(python(code), b"given")) == (b"nevig b\n", b"e", 3)


def test_much_of_both_is_no_deadlock(run: Run) -> None:
    code = "import sys; sys.stderr.write('e' * 2**20); sys.stdout.write(sys.stdin.read() * 2)"
    out, err, code_ = run(outputs(python(code), b"x" * 2**20))
    assert (len(out), len(err), code_) == (2**21, 2**20, 0)


@pytest.mark.parametrize("pieces", [0, 3, 100_000], ids=["silent", "short", "more than a pipe holds"])
def test_a_side_output_has_the_beginning_of_it_and_stops_no_child(run: Run, pieces: int) -> None:
    code = (
        f"import sys; out = open(sys.argv[1], 'wb', 0); [out.write(b'%9d\\n' % n) for n in range({pieces})]"
    )

    async def talk() -> tuple[bytes, int]:
        with side_output(200_000) as pipe:
            command = (*python(code), f"/dev/fd/{pipe.fd}")
            async with child(command, Path("/"), {}, b"", pass_fds=[pipe.fd]) as started:
                await asyncio.gather(started.stdout.read(), started.stderr.read())
                code_ = await started.wait()
            return pipe.content(), code_

    before = descriptors()
    expected = b"".join(b"%9d\n" % number for number in range(min(pieces, 20_000)))
    assert run(talk()) == (expected, 0)
    assert descriptors() == before


def test_without_input_it_reads_the_end_at_once(run: Run) -> None:
    assert run(outputs(python("import sys; print(repr(sys.stdin.read()))")))[0] == b"''\n"


def test_a_program_that_is_not_there(run: Run) -> None:
    with pytest.raises(OSError, match="no-such-program"):
        run(outputs(("/no-such-program",)))


def test_killing_it_kills_what_it_has_started_too(run: Run, tmp_path: Path) -> None:
    fifo = tmp_path / "open as long as either lives"
    os.mkfifo(fifo)
    code = f"import os, time; held = open({str(fifo)!r}, 'w'); print(os.fork(), flush=True); time.sleep(600)"

    async def leave() -> None:
        async with child(python(code), Path("/"), {}, b"") as started:
            with await asyncio.to_thread(fifo.open, "rb") as end:
                assert len({await started.stdout.readline() for _ in range(2)}) == 2
                started.kill()
                assert await asyncio.to_thread(end.read) == b""
        assert started.process.returncode == -signal.SIGKILL

    run(leave())


def test_who_is_cancelled_leaves_no_child_behind(run: Run, tmp_path: Path) -> None:
    fifo = tmp_path / "open as long as it lives"
    os.mkfifo(fifo)
    code = f"import time; held = open({str(fifo)!r}, 'w'); time.sleep(600)"

    async def cancel() -> None:
        reading = asyncio.ensure_future(outputs(python(code)))
        with await asyncio.to_thread(fifo.open, "rb") as end:
            reading.cancel()
            assert await asyncio.to_thread(end.read) == b""
            await asyncio.wait([reading])
        assert reading.cancelled()

    run(cancel())


def test_many_at_once_leave_no_descriptor_open_and_close_none_of_others(run: Run) -> None:
    async def many() -> None:
        before = descriptors()
        for _ in range(5):
            done = asyncio.gather(*(outputs(("/bin/echo", "x")) for _ in range(8)))
            opened = [await asyncio.to_thread(open, "/dev/null", "rb") for _ in range(16)]
            assert await done == [(b"x\n", b"", 0)] * 8
            for file in opened:
                await asyncio.to_thread(file.close)
        assert descriptors() <= before

    run(many())
