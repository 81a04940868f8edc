"""A served orchestrator whose job has handed an artifact out."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from solstice_orchestrator.store.artifact_records import ArtifactAnswer, ArtifactRecord
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from tests.servers.orchestrator_web import WebServer, serve_web, spec

CONTENT = bytes(range(256)) * 4096
"""1 MiB, in place of a tar."""
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass(frozen=True, slots=True)
class HandedOut:
    """The served orchestrator, and whose artifact it is."""

    web: WebServer
    run_id: str
    job_id: str
    archive: Path


@asynccontextmanager
async def handed_out(directory: Path, *, name: str = "dist", jobs: int = 1) -> AsyncIterator[HandedOut]:
    """Serve a run whose jobs have each handed out the same archive."""
    archives = ArtifactArchives(directory / "artifacts")
    archives.prepare()
    async with serve_web(directory, find_archive=archives.find) as web:
        with archives.incoming() as incoming:
            incoming.file.write(CONTENT)
            archives.place(incoming, DIGEST, 0)
        archive = archives.find(DIGEST)
        assert archive is not None
        run, ids = await web.plan(*(spec(f"build-{number}") for number in range(jobs)))
        for claim in await web.store.claim("worker-1", {"linux": jobs}, jobs):
            artifact = ArtifactRecord(
                name=name, digest=DIGEST, size=len(CONTENT), files=3, retention_seconds=3600.0
            )
            assert await web.store.record_artifact(claim.key, artifact, 0) is ArtifactAnswer.STORED
            await web.finish(claim.key)
        yield HandedOut(web=web, run_id=run.run_id, job_id=ids["build-0"], archive=archive)
