"""Read what the services of a job write, each from a pipe of its own."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from solstice_orchestrator.processes.children import PipeReader, pipe_reader

PIECE_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 4 * 1024
LAST_SECONDS: Final = 5.0
"""How long the remaining output may take to be read once all processes of the job have ended."""
_TO_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

ServiceWriter = Callable[[str, bytes], Awaitable[None]]
"""Takes the name of a service and a piece of its output."""


@dataclass(kw_only=True)
class ServiceOutput:
    """A pipe with the output of one service, and the end of what was read."""

    pipe: Path
    """A pipe with a name."""
    left_out: bytes = b""
    """What the program that starts the service writes there."""
    tail: bytearray = field(default_factory=bytearray)
    """The end of what was read so far."""


@asynccontextmanager
async def reading(outputs: Mapping[str, ServiceOutput], write: ServiceWriter) -> AsyncIterator[None]:
    """Pass on the outputs of services until all that they wrote is read, after leaving."""
    with ExitStack() as readers, ExitStack() as open_ends:
        pumps = set()
        for name, output in outputs.items():
            # Our own open end, or else the pipe is at its end before the service writes.
            pipe = os.fdopen(os.open(output.pipe, _TO_READ), "rb", buffering=0)
            reader = readers.enter_context(pipe_reader(pipe))
            open_ends.callback(os.close, os.open(output.pipe, os.O_WRONLY | os.O_CLOEXEC))
            pumps.add(asyncio.create_task(_pump(name, output, reader, write), name=f"service {name}"))
        try:
            yield
            open_ends.close()
            if pumps:
                await asyncio.wait(pumps, timeout=LAST_SECONDS)
        finally:
            for pump in pumps:
                pump.cancel()
            if pumps:
                await asyncio.wait(pumps)


async def _pump(name: str, output: ServiceOutput, reader: PipeReader, write: ServiceWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        if output.left_out and output.left_out in piece:
            piece, output.left_out = piece.replace(output.left_out, b"", 1), b""
        output.tail += piece
        del output.tail[:-TAIL_BYTES]
        await write(name, piece)
