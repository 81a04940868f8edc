"""API v1 of artifacts: those of a run, and the archive of one."""

import asyncio
import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from solstice_orchestrator.store.artifact_records import ArtifactView
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.web.api.runs import answer, known_job
from solstice_orchestrator.web.formats.api_json import document
from solstice_orchestrator.web.formats.byte_ranges import byte_range
from solstice_orchestrator.web.formats.query_parameters import NoParameters, parse_query
from solstice_orchestrator.web.formats.refusals import HttpRefusal, not_found

TAR: Final = "application/x-tar"
PIECE_BYTES: Final = 256 * 1024

FindArchive = Callable[[str], Path | None]
"""Finds the archive of a digest; None when it is not here."""


def no_archives(_digest: str) -> None:
    """Find none."""


class ArtifactsApi:
    """The routes of artifacts."""

    def __init__(self, store: JobStore, find_archive: FindArchive) -> None:
        self._store = store
        self._find_archive = find_archive

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/runs/{run_id}/artifacts", self.artifacts),
            Route("/jobs/{job_id}/artifacts/{artifact}", self.artifact),
        ]

    async def artifacts(self, request: Request) -> Response:
        """The artifacts of a run, by jobs and names."""
        parse_query(request, NoParameters)
        run_id = request.path_params["run_id"]
        if await self._store.run(run_id) is None:
            raise not_found("run", run_id)
        found = await self._store.artifacts(run_id=run_id)
        return answer({"artifacts": [document(each) for each in found]})

    async def artifact(self, request: Request) -> Response:
        """The archive of an artifact, a tar, or a `Range` of it.

        Its `ETag` and its `Repr-Digest` (RFC 9530) are its SHA-256. What a job put into it is as trusted as the job.
        """
        parse_query(request, NoParameters)
        job = await known_job(self._store, request)
        name = request.path_params["artifact"]
        known = await self._store.artifacts(job_id=job.job_id)
        found = next((each for each in known if each.name == name), None)
        if found is None:
            raise not_found(f"artifact of the job {job.name!r},", name)
        archive = await asyncio.to_thread(self._opened, found)
        if archive is None:
            raise HttpRefusal(
                404,
                "archive_missing",
                f"The archive of {name!r} is not in this orchestrator's ARTIFACT_DIRECTORY. All orchestrators of a store "
                "need the same one.",
            )
        return _download(request, found, archive)

    def _opened(self, artifact: ArtifactView) -> BinaryIO | None:
        """Open the archive; once that is done it may be removed."""
        path = self._find_archive(artifact.digest)
        try:
            return None if path is None else path.open("rb")
        except FileNotFoundError:
            return None


class _Download(StreamingResponse):
    """Sends bytes of an archive, and closes it also when the caller is gone."""

    def __init__(self, archive: BinaryIO, size: int, status: int, headers: Mapping[str, str]) -> None:
        headers = {**headers, "Content-Length": str(size)}
        super().__init__(_pieces(archive, size), status, headers, TAR)
        self._archive = archive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._archive.close()


def _download(request: Request, artifact: ArtifactView, archive: BinaryIO) -> Response:
    size = os.fstat(archive.fileno()).st_size
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": f'"{artifact.digest}"',
        "Repr-Digest": f"sha-256=:{b64encode(bytes.fromhex(artifact.digest)).decode()}:",
        # Names of jobs and artifacts are letters, digits, '.', '_' and '-'.
        "Content-Disposition": f'attachment; filename="{artifact.job}-{artifact.name}.tar"',
    }
    byte_span = byte_range(request.headers.get("range"))
    if byte_span is None or request.headers.get("if-range", headers["ETag"]) != headers["ETag"]:
        return _Download(archive, size, 200, headers)
    first = byte_span.first if byte_span.first >= 0 else max(0, size + byte_span.first)
    last = size - 1 if byte_span.last is None else min(byte_span.last, size - 1)
    if first > last:
        archive.close()
        raise HttpRefusal(
            416, "no_such_range", f"The archive has {size} bytes.", {"Content-Range": f"bytes */{size}"}
        )
    archive.seek(first)
    return _Download(
        archive, last - first + 1, 206, {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}
    )


def _pieces(archive: BinaryIO, left: int) -> Iterator[bytes]:
    while left and (piece := archive.read(min(left, PIECE_BYTES))):
        left -= len(piece)
        yield piece
