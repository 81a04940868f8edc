"""A SOCKS 5 proxy (RFC 1928) without user and password, which misbehaves on demand."""

import contextlib
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from socketserver import BaseRequestHandler, ThreadingTCPServer

from tests.servers.http_proxy import served

PIECE = 64 * 1024


@dataclass(kw_only=True)
class SocksProxy:
    """A running proxy, and where it was asked to connect."""

    manner: str = "works"
    """works, asks for a password, refuses, garbage or closes."""
    port: int = 0
    targets: list[str] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)
    """Addresses of names that it alone knows."""

    @property
    def name(self) -> str:
        return f"localhost:{self.port}"


class _Server(ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseRequestHandler):
    proxy: SocksProxy

    def handle(self) -> None:
        manner = self.proxy.manner
        if manner == "closes":
            return
        if manner == "garbage":
            self.request.sendall(b"SSH-2.0-OpenSSH_9\r\n" * 9)
            return
        _, methods = self._read(2)
        self._read(methods)
        if manner == "asks for a password":
            self.request.sendall(b"\x05\xff")
            return
        self.request.sendall(b"\x05\x00")
        _, _, _, kind = self._read(4)
        host = self._read(self._read(1)[0]).decode() if kind == 3 else socket.inet_ntoa(self._read(4))
        port = int.from_bytes(self._read(2), "big")
        self.proxy.targets.append(f"{host}:{port}")
        if manner == "refuses":
            self.request.sendall(b"\x05\x02\x00\x01" + bytes(6))
            return
        with socket.create_connection((self.proxy.hosts.get(host, host), port), 20) as server:
            # A name as the address: the longest kind of answer.
            self.request.sendall(b"\x05\x00\x00\x03\x04quay\x00\x01")
            self._join(server)

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            piece = self.request.recv(size - len(content))
            if not piece:
                raise EOFError
            content += piece
        return content

    def _join(self, server: socket.socket) -> None:
        other = {self.request: server, server: self.request}
        while ready := select.select(list(other), [], [], 20)[0]:
            for each in ready:
                piece = each.recv(PIECE)
                if not piece:
                    return
                other[each].sendall(piece)


@contextlib.contextmanager
def socks_proxy(manner: str = "works") -> Iterator[SocksProxy]:
    """A proxy that listens until left."""
    proxy = SocksProxy(manner=manner)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    with served(server) as proxy.port:
        yield proxy
