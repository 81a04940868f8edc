"""Servers of git repositories, honest and misbehaving.

They are git's own HTTP backend, plain files over HTTP, git's daemon, and others.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.repositories import GIT_ENVIRONMENT
from tests.servers.ports import free_ports


@contextlib.contextmanager
def http_server(handler: Any) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, name="http of the test")
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def plain_files(root: Path) -> Any:
    """Serve files as a dumb HTTP server."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    return partial(Handler, directory=str(root))


def answering(status: int, **headers: str) -> Any:
    """A server that gives every client the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


def git_backend(root: Path, **environment: str) -> Any:
    """git's own server program, run for each request as a web server would (RFC 3875)."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            done = subprocess.run(
                ["git", "http-backend"],
                input=body,
                env={
                    **GIT_ENVIRONMENT,
                    "GIT_PROJECT_ROOT": str(root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                    "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
                    **environment,
                },
                capture_output=True,
                check=False,
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n") if line)
            self.send_response(int(fields.pop(b"Status", b"200 OK").split()[0]))
            for name, value in fields.items():
                self.send_header(name.decode(), value.decode())
            self.end_headers()
            self.wfile.write(content)

    return Handler


class AskingServer:
    """The requests to a server that asks for a user and password."""

    def __init__(self, user: str, password: str) -> None:
        self.authorization = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
        self.requests: list[tuple[str, str]] = []
        """Path and authorization of each request."""
        self.before_answer: Callable[[str], object] = lambda _: None
        """Called with the path of each request that is let in."""

    def handler(self, server: Any) -> Any:
        """Guard the handler of a server."""
        asking = self

        def do_get(self: Any) -> None:
            given = self.headers.get("Authorization") or ""
            asking.requests.append((self.path, given))
            if given != asking.authorization:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="forge"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            asking.before_answer(self.path)
            server.do_GET(self)

        return type("Asking", (server,), {"do_GET": do_get})


@asynccontextmanager
async def git_daemon(root: Path) -> AsyncIterator[int]:
    """git daemon for the repositories below `root`; its port."""
    (port,) = free_ports(1)
    process = await asyncio.create_subprocess_exec(
        "git",
        "daemon",
        "--reuseaddr",
        "--export-all",
        "--listen=127.0.0.1",
        f"--port={port}",
        f"--base-path={root}",
        env=GIT_ENVIRONMENT,
        start_new_session=True,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    await writer.wait_closed()
                    break
                await asyncio.sleep(0.02)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
