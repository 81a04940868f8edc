"""A forward proxy that asks for a user and password, and misbehaves on demand."""

import contextlib
import select
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import quote, urlsplit

PIECE = 64 * 1024


@dataclass(kw_only=True)
class HttpProxy:
    """A running proxy, and what it was asked."""

    user: str
    password: str
    scheme: str = "http"
    manner: str = "works"
    """works, silent, closes, garbage, endless, digest, or a status that it answers."""
    port: int = 0
    requests: list[str] = field(default_factory=list)
    """The first line of each request."""
    authorizations: list[str] = field(default_factory=list)
    ended: Event = field(default_factory=Event)

    def url(self, *, user: str | None = None, password: str | None = None) -> str:
        account = (
            quote(self.user if user is None else user, safe=""),
            quote(self.password if password is None else password, safe=""),
        )
        return f"{self.scheme}://{':'.join(account)}@127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def authorization(self) -> str:
        return f"Basic {b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up."""

    def shutdown_request(self, request: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                request.settimeout(5)
                request.unwrap()  # GnuTLS takes an end without a notice for an attack
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection; a subclass names its proxy."""

    proxy: HttpProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _is_admitted(self) -> bool:
        self.proxy.requests.append(self.requestline)
        given = self.headers.get("Proxy-Authorization", "")
        self.proxy.authorizations.append(given)
        self.close_connection = True
        match self.proxy.manner:
            case "silent":
                self.proxy.ended.wait(60)
            case "closes":
                pass
            case "garbage":
                self.wfile.write(b"SSH-2.0-OpenSSH_9\r\n\r\n")
            case "endless":
                with contextlib.suppress(OSError):
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                    while not self.proxy.ended.is_set():
                        self.wfile.write(b"x: y\r\n" * 1000)
            case "digest":
                self._refuse(407, 'Digest realm="r", nonce="n"')
            case "works" if given == self.proxy.authorization:
                return True
            case "works":
                self._refuse(407, 'Basic realm="harbour"')
            case status:
                self._refuse(int(status))
        return False

    def _refuse(self, status: int, asks: str = "") -> None:
        self.send_response(status)
        if asks:
            self.send_header("Proxy-Authenticate", asks)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_CONNECT(self) -> None:
        if not self._is_admitted():
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), 20) as server:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self._join(server)

    def _join(self, server: socket.socket) -> None:
        other = {self.connection: server, server: self.connection}
        while True:
            ready = select.select(list(other), [], [], 20)[0]
            if isinstance(self.connection, ssl.SSLSocket) and self.connection.pending():
                ready = [self.connection]
            for each in ready:
                piece = each.recv(PIECE)
                if not piece:
                    return
                other[each].sendall(piece)
            if not ready:
                return

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if not self._is_admitted():
            return
        parts = urlsplit(self.path)
        headers = {
            name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")
        }
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with contextlib.closing(HTTPConnection(parts.netloc, timeout=20)) as server:
            server.request(self.command, f"{parts.path}?{parts.query}", body, headers)
            answer = server.getresponse()
            content = answer.read()
        self.send_response(answer.status)
        for name in ("Content-Type", "Location"):
            if value := answer.headers[name]:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def served(server: TCPServer, certificate: tuple[Path, Path] | None = None) -> Iterator[int]:
    """Run a server until left, with TLS when there is a certificate; its port."""
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=server.serve_forever, name="server of the test", args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def http_proxy(*, certificate: tuple[Path, Path] | None = None, **properties: Any) -> Iterator[HttpProxy]:
    """A proxy that listens until left."""
    proxy = HttpProxy(scheme="https" if certificate else "http", **properties)
    with served(
        _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy})), certificate
    ) as proxy.port:
        try:
            yield proxy
        finally:
            proxy.ended.set()


@contextlib.contextmanager
def https_server(handler: Any, certificate: tuple[Path, Path]) -> Iterator[int]:
    """A web server with TLS; its port."""
    with served(_Server(("127.0.0.1", 0), handler), certificate) as port:
        yield port
