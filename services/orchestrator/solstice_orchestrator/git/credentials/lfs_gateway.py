"""A loopback server for git-lfs, which gets large files from the host.

git-lfs gets no credential, also none that the host gives it for a download. It can ask for nothing but objects of this
repository, while one command runs. The host may name another one that has the objects, as GitHub does: that one gets what
the host named for it, and never the repository's credential.
"""

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.addresses import AddressRefused, pinned
from solstice_orchestrator.git.credentials.git_credentials import HttpCredential
from solstice_orchestrator.git.credentials.http_heads import read_answer
from solstice_orchestrator.git.credentials.lfs_messages import (
    MEDIA_TYPE,
    LfsDownload,
    LfsElsewhere,
    LfsObject,
    batch_answer,
    batch_path,
    batch_request,
    read_batch_answer,
    read_batch_request,
)
from solstice_orchestrator.git.credentials.loopback_connections import LoopbackConnections
from solstice_orchestrator.git.credentials.upstream import HEAD_BYTES, NoConnection, Upstream
from solstice_orchestrator.processes.egress.message_heads import body_bytes_of, joined, split_head

HEAD_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 30.0
"""How long the host may send nothing."""
MESSAGE_BYTES: Final = 4 * 1024**2
PIECE_BYTES: Final = 64 * 1024
CONNECTIONS: Final = 32
END: Final = b"\r\n\r\n"
OK: Final = 200
UNAUTHORIZED: Final = 401
_REFUSALS: Final = frozenset({UNAUTHORIZED, 403, 404})
_REQUEST: Final = re.compile(r"(POST|GET) /([\w-]+)/objects/(batch|[0-9a-f]{64}) HTTP/1\.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LfsFetch:
    """The host that tells where objects are, and what they may take."""

    upstream: Upstream
    credential: HttpCredential | None
    max_bytes: int
    """The most bytes of one object."""
    allow_private: bool
    """Whether objects may come from addresses outside the internet."""


@dataclass(slots=True, kw_only=True)
class LfsGateway:
    """An open gateway, as its user sees it."""

    base: str
    """The URL of the server for git-lfs."""
    trouble: str = ""
    """What was wrong at first."""
    reason: Reason = Reason.CHECKOUT_FAILED
    """Whose failure that is."""
    objects: dict[str, LfsObject] = field(default_factory=dict)
    downloads: dict[str, LfsDownload] = field(default_factory=dict)

    def say(self, reason: Reason, trouble: str) -> None:
        """Remember the first trouble."""
        if not self.trouble:
            self.reason, self.trouble = reason, trouble


@asynccontextmanager
async def open_lfs_gateway(fetch: LfsFetch) -> AsyncIterator[LfsGateway]:
    """Open a gateway; leaving ends all connections. Raises OSError when no socket is left."""
    token = secrets.token_urlsafe(24)
    gateway = LfsGateway(base="")
    connections = LoopbackConnections(_Serving(fetch, token, gateway).serve, "lfs gateway", CONNECTIONS)
    server = await asyncio.start_server(connections.accept, "127.0.0.1", 0, limit=HEAD_BYTES)
    try:
        gateway.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/{token}"
        yield gateway
    finally:
        server.close()
        await connections.end()


class _Refused(Exception):
    """The request has no good answer; the gateway knows why."""


class _Serving:
    """The requests of git-lfs to one gateway."""

    def __init__(self, fetch: LfsFetch, token: str, gateway: LfsGateway) -> None:
        self._fetch, self._token, self._gateway = fetch, token, gateway
        self._elsewhere: dict[str, Upstream] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            name, body = await self._request(reader)
            await (self._batch(body, writer) if name == "batch" else self._object(name, writer))
        except (_Refused, NoConnection, TimeoutError):
            writer.write(joined("HTTP/1.1 422 Gateway", [("Content-Length", "0"), ("Connection", "close")]))
            with contextlib.suppress(OSError):
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            # git-lfs hung up, or another process sent what is no request.
            pass

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, bytes]:
        """Return what is asked for, and the body of the request."""
        async with asyncio.timeout(HEAD_SECONDS):
            line, fields = split_head(await reader.readuntil(END))
            matched = _REQUEST.fullmatch(line)
            if matched is None or not secrets.compare_digest(matched[2], self._token):
                raise _Refused
            return matched[3], await reader.readexactly(min(body_bytes_of(fields), MESSAGE_BYTES))

    async def _batch(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        objects = read_batch_request(body)
        downloads = await self._downloads(objects)
        absent = {}
        for each in objects:
            if each.oid not in downloads:
                absent[each.oid] = "the host has no content for it"
            elif each.size_bytes > self._fetch.max_bytes:
                absent[each.oid] = "it is larger than the disk limit of a checkout here"
            else:
                self._gateway.objects[each.oid], self._gateway.downloads[each.oid] = each, downloads[each.oid]
        for oid, why in absent.items():
            self._gateway.say(Reason.COMMIT_UNUSABLE, f"the LFS object {oid} is not fetched: {why}")
        answer = batch_answer(objects, self._gateway.base, absent)
        size = ("Content-Length", str(len(answer)))
        writer.write(joined("HTTP/1.1 200 OK", [("Content-Type", MEDIA_TYPE), size, ("Connection", "close")]))
        writer.write(answer)
        await writer.drain()

    async def _downloads(self, objects: Sequence[LfsObject]) -> Mapping[str, LfsDownload]:
        upstream, message = self._fetch.upstream, batch_request(objects)
        head = [("Accept", MEDIA_TYPE), ("Content-Type", MEDIA_TYPE), ("Content-Length", str(len(message)))]
        target = batch_path(upstream.parts.path)
        fields = (*head, *self._authorization())
        async with self._body_of(upstream, "POST", target, fields, message) as from_host:
            answer = bytearray()
            async with asyncio.timeout(SILENT_SECONDS):
                while piece := await from_host.read(PIECE_BYTES):
                    answer += piece
                    if len(answer) > MESSAGE_BYTES:
                        raise self._wrong(upstream, "sends more than an answer has")
        try:
            return read_batch_answer(bytes(answer), upstream.repo_url)
        except LfsElsewhere as error:
            self._gateway.say(
                Reason.COMMIT_UNUSABLE,
                f"the content of LFS objects is at {error}; it is fetched from another host by https alone",
            )
            raise _Refused from None
        except (ValueError, KeyError, RecursionError):
            raise self._wrong(upstream, "gave an answer that is not one of Git LFS") from None

    async def _object(self, oid: str, writer: asyncio.StreamWriter) -> None:
        download = self._gateway.downloads.get(oid)
        if download is None:
            raise _Refused
        left = self._gateway.objects[oid].size_bytes
        upstream, fields = await self._host_of(download)
        async with self._body_of(upstream, "GET", download.target, fields) as from_host:
            writer.write(joined("HTTP/1.1 200 OK", [("Content-Length", str(left)), ("Connection", "close")]))
            while left:
                async with asyncio.timeout(SILENT_SECONDS):
                    piece = await from_host.read(min(left, PIECE_BYTES))
                if not piece:
                    raise EOFError
                left -= len(piece)
                writer.write(piece)
                await writer.drain()

    async def _host_of(self, download: LfsDownload) -> tuple[Upstream, Sequence[tuple[str, str]]]:
        """Return the host of an object, and the fields of the request to it."""
        own, credential = self._fetch.upstream, self._fetch.credential
        if not download.origin:
            has_own = any(name.lower() == "authorization" for name, _ in download.fields)
            return own, download.fields if has_own else (*download.fields, *self._authorization())
        if download.origin not in self._elsewhere:
            self._elsewhere[download.origin] = await self._checked(download.origin)
        # Some hosts repeat what they got, which is for them alone.
        fields = [each for each in download.fields if not credential or credential.masked(each[1]) == each[1]]
        return self._elsewhere[download.origin], fields

    async def _checked(self, origin: str) -> Upstream:
        """Look up another host; its address must be one from which repositories are fetched."""
        elsewhere = Upstream(repo_url=origin, environment=self._fetch.upstream.environment)
        if self._fetch.allow_private:
            return elsewhere
        try:
            return replace(elsewhere, addresses=(await pinned(origin, "")).addresses)
        except AddressRefused as refused:
            detail = f"the content of LFS objects is not fetched from {elsewhere.parts.netloc}: {refused}"
            self._gateway.say(Reason.COMMIT_UNUSABLE, detail)
            raise _Refused from None
        except OSError as error:
            raise self._wrong(elsewhere, f"has no address ({error.strerror})") from None

    def _authorization(self) -> tuple[tuple[str, str], ...]:
        credential = self._fetch.credential
        return (("Authorization", credential.authorization),) if credential else ()

    @asynccontextmanager
    async def _body_of(
        self,
        upstream: Upstream,
        method: str,
        target: str,
        fields: Sequence[tuple[str, str]],
        body: bytes = b"",
    ) -> AsyncIterator[asyncio.StreamReader]:
        """Send a request to a host, and give the body of its good answer."""
        try:
            from_host, to_host = await upstream.connect()
        except NoConnection as error:
            raise self._wrong(upstream, f"cannot be reached: {error}") from None
        with contextlib.closing(to_host):
            # To an older client a server sends the body as it is, up to the end of the connection.
            to_host.write(
                joined(f"{method} {target} HTTP/1.0", [("Host", upstream.parts.netloc), *fields]) + body
            )
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    answer = read_answer(await from_host.readuntil(END))
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
                raise self._wrong(upstream, "gave no answer of HTTP") from None
            if answer.status != OK:
                # Another host may refuse a URL that has expired; a later try gets a new one.
                is_final = answer.status in _REFUSALS and upstream is self._fetch.upstream
                credential = self._fetch.credential
                if is_final and answer.status == UNAUTHORIZED and credential and credential.refused:
                    credential.refused()
                    is_final = False
                reason = Reason.COMMIT_NOT_FOUND if is_final else Reason.CHECKOUT_FAILED
                raise self._wrong(upstream, f"gives no LFS objects ({answer.status})", reason)
            yield from_host

    def _wrong(self, upstream: Upstream, what: str, reason: Reason = Reason.CHECKOUT_FAILED) -> _Refused:
        self._gateway.say(reason, f"{upstream.parts.netloc} {what}")
        return _Refused()
