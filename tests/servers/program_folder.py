"""A folder for the PATH of shells, whose programs are forks: see `program_forks`.

Each program there is a script that needs the standard library alone. It hands its arguments, environment and three streams
to a thread of this process, and ends as the fork does.
"""

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

from tests.servers.forks import PROGRAMS, ForkedProgram

MESSAGE_BYTES: Final = 1 << 20
PROGRAM_SECONDS: Final = 100.0
SCRIPT: Final = """\
#!/bin/sh
exec {python} -IS {client} {name} "$@"
"""
CLIENT: Final = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
    link.connect(ADDRESS)
    request = dict(words=sys.argv[1:], env=dict(os.environ), cwd=os.getcwd())
    socket.send_fds(link, [json.dumps(request).encode()], [0, 1, 2])
    sys.exit(int(link.recv(16) or b"1"))
"""


@contextmanager
def program_folder() -> Iterator[Path]:
    """Yield a folder with `solstice`, `forge-integration` and `orchestrator`, which work until left."""
    # Not below the folders of tests: the address of a socket has a hundred characters.
    with (
        TemporaryDirectory(prefix="programs-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        folder = Path(name)
        client, address = folder / "client.py", folder / "socket"
        client.write_text(CLIENT.replace("ADDRESS", repr(str(address))))
        for program in PROGRAMS:
            words = {"python": sys.executable, "client": str(client), "name": program}
            script = folder / program
            script.write_text(SCRIPT.format(**{key: shlex.quote(word) for key, word in words.items()}))
            script.chmod(0o755)
        listener.bind(str(address))
        listener.listen()
        serving = Thread(target=_serve, args=(listener,), name="programs that run as forks")
        serving.start()
        try:
            yield folder
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            serving.join()


def _serve(listener: socket.socket) -> None:
    """Run what each connection asks for, until the listener ends."""
    with ThreadPoolExecutor(thread_name_prefix="a program that runs as a fork") as pool:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            pool.submit(_run, link)


def _run(link: socket.socket) -> None:
    with link:
        message, streams, _, _ = socket.recv_fds(link, MESSAGE_BYTES, 3)
        if len(streams) != 3:
            return
        request = json.loads(message)
        try:
            stdin, stdout, stderr = streams
            program = ForkedProgram(
                request["words"],
                env=request["env"],
                cwd=Path(request["cwd"]),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
            )
        finally:
            for each in streams:
                os.close(each)
        try:
            code = program.wait(PROGRAM_SECONDS)
        finally:
            program.kill()
        with suppress(BrokenPipeError):
            # A program that a signal ended has a negative code.
            link.send(b"%d" % (code % 256))
