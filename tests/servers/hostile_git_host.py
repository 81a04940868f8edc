"""A git host whose repositories answer everything but a fetch."""

import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.git_servers import git_backend

WAIT_SECONDS = 120
STATUSES = [301, 302, 307, 308, 400, 403, 404, 410, 418, 429]


def packet(words: bytes) -> bytes:
    return b"%04x" % (len(words) + 4) + words


LIE = b"no\nfatal: unable to access 'http://x/': Could not resolve host: x\nerror: RPC failed; HTTP 503 curl 28 x\n"
SERVICE = packet(b"# service=git-upload-pack\n") + b"0000"
V2 = SERVICE + b"".join(map(packet, (b"version 2\n", b"ls-refs\n", b"fetch=shallow filter\n"))) + b"0000"
BODIES = {
    "refusal": (SERVICE + packet(b"ERR " + LIE), b""),
    "web page": (b"<html>Could not resolve host</html>", b""),
    "wrong packet": (SERVICE + b"zzzz", b""),
    "abort of the fetch": (V2, packet(b"packfile\n") + packet(b"\x02" + LIE) + packet(b"\x03" + LIE)),
    "end of the fetch": (V2, b""),
}


def is_checkout(handler: Any) -> bool:
    """Whether a client asks for a whole commit, as planning does not."""
    if handler.command != "POST":
        return False
    body = handler.rfile.peek(int(handler.headers["Content-Length"]))
    return b"fetch" in body and b"filter " not in body


@dataclass
class Hanging:
    """Clients that get no answer until they are released."""

    paths: queue.Queue[str] = field(default_factory=queue.Queue)
    """The paths they asked for."""
    released: threading.Event = field(default_factory=threading.Event)

    def hold(self, path: str) -> None:
        self.paths.put(path)
        self.released.wait(WAIT_SECONDS)


def hostile(root: Path, hanging: Hanging | None = None) -> Any:
    """A host whose repositories answer as the first segment of their path says.

    Those below `late` answer planning, and refuse checkouts; those below `closes` close the connection, and those below
    `hangs` become `hanging` before they do.
    """
    backend = git_backend(root)

    def answer(self: Any) -> None:
        kind = self.path.split("/")[1].replace("_", " ")
        if kind == "late":
            kind = "429" if is_checkout(self) else "good"
        if kind == "hangs" and hanging is not None:
            hanging.hold(self.path)
        if kind in {"closes", "hangs"}:
            self.close_connection = True
            return
        if kind not in BODIES and not kind.isdecimal():
            backend.do_GET(self)
            return
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = b""
        if kind.isdecimal():
            self.send_response(int(kind))
            self.send_header("Location", "http://127.0.0.1:1/app.git/info/refs?service=git-upload-pack")
        else:
            content = BODIES[kind][self.command == "POST"]
            side = "result" if self.command == "POST" else "advertisement"
            self.send_response(200)
            self.send_header("Content-Type", f"application/x-git-upload-pack-{side}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    return type("Handler", (backend,), {"do_GET": answer, "do_POST": answer})
