"""`solstice artifacts list` and `get`, against a real server."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.handed_out import CONTENT, DIGEST, HandedOut, handed_out
from tests.servers.service_process import base_environment
from tests.servers.stream_server import stream_server

PART = f"dist.tar.{DIGEST[:16]}.part"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[HandedOut]:
    async with handed_out(tmp_path, jobs=2) as found:
        yield found


async def solstice(
    served: HandedOut, *words: str, directory: Path | None = None, url: str = ""
) -> "subprocess.CompletedProcess[str]":
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "solstice_cli", "artifacts", *words, "--solstice-url", url or served.web.url],
        capture_output=True,
        text=True,
        check=False,
        env=base_environment(),
        cwd=directory,
    )


async def test_artifacts_of_a_run_and_of_a_job_are_listed(served: HandedOut) -> None:
    listed = await solstice(served, "list", served.run_id)
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert [(row[0], row[1], row[2], row[6]) for row in rows] == [
        ("dist", job, str(len(CONTENT)), DIGEST) for job in ("build-0", "build-1")
    ]
    of_job = await solstice(served, "list", served.job_id, "--json")
    (artifact,) = json.loads(of_job.stdout)["artifacts"]
    assert (artifact["job_id"], artifact["digest"]) == (served.job_id, DIGEST)


async def test_an_artifact_is_downloaded_whole_and_never_over_a_file(
    served: HandedOut, tmp_path: Path
) -> None:
    ended = await solstice(served, "get", served.job_id, "dist", directory=tmp_path)
    assert (ended.returncode, (tmp_path / "dist.tar").read_bytes()) == (0, CONTENT)
    assert f"sha256:{DIGEST}" in ended.stdout
    assert not (tmp_path / PART).exists()
    (tmp_path / "dist.tar").write_bytes(b"other")
    again = await solstice(served, "get", served.job_id, "dist", directory=tmp_path)
    assert again.returncode == 2
    assert "dist.tar is there already" in again.stderr
    assert (tmp_path / "dist.tar").read_bytes() == b"other"
    forced = await solstice(served, "get", served.job_id, "dist", "--force", "--json", directory=tmp_path)
    assert json.loads(forced.stdout)["file"] == "dist.tar"
    assert (tmp_path / "dist.tar").read_bytes() == CONTENT


async def test_an_artifact_goes_to_the_standard_output(served: HandedOut, tmp_path: Path) -> None:
    def piped() -> "subprocess.CompletedProcess[bytes]":
        words = ("artifacts", "get", served.job_id, "dist", "-o", "-", "--solstice-url", served.web.url)
        return subprocess.run(
            [sys.executable, "-m", "solstice_cli", *words],
            capture_output=True,
            check=False,
            env=base_environment(),
            cwd=tmp_path,
        )

    ended = await asyncio.to_thread(piped)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, CONTENT, b"")
    served.archive.write_bytes(CONTENT[:-1] + b"\0")
    damaged = await asyncio.to_thread(piped)
    assert damaged.returncode != 0
    assert b"its SHA-256 is another" in damaged.stderr


async def test_a_download_goes_on_where_the_last_one_ended(served: HandedOut, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(CONTENT[:700_000])
    # Were all of it read again, the last bytes would come twice, and the digest would be another.
    ended = await solstice(served, "get", served.job_id, "dist", "-o", "dist.tar", directory=tmp_path)
    assert (ended.returncode, (tmp_path / "dist.tar").read_bytes()) == (0, CONTENT)


async def test_a_wrong_part_is_not_taken_for_the_artifact(served: HandedOut, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(b"wrong")
    ended = await solstice(served, "get", served.job_id, "dist", directory=tmp_path)
    assert ended.returncode != 0
    assert "its SHA-256 is another" in ended.stderr
    assert not (tmp_path / "dist.tar").exists()
    assert not (tmp_path / PART).exists()
    assert (await solstice(served, "get", served.job_id, "dist", directory=tmp_path)).returncode == 0


async def test_an_archive_that_is_damaged_is_not_taken_either(served: HandedOut, tmp_path: Path) -> None:
    served.archive.write_bytes(CONTENT[:-1] + b"\0")
    ended = await solstice(served, "get", served.job_id, "dist", directory=tmp_path)
    assert ended.returncode != 0
    assert not (tmp_path / "dist.tar").exists()


async def test_a_download_over_links_that_break_is_whole(served: HandedOut, tmp_path: Path) -> None:
    port, broken = urlsplit(served.web.url).port, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass all on, and close the link after so many bytes of answers."""
        nonlocal broken
        upstream, sink = await asyncio.open_connection("127.0.0.1", port)

        async def pass_on() -> None:
            while piece := await reader.read(65536):
                sink.write(piece)

        asking, left = asyncio.create_task(pass_on(), name="requests"), 400_000
        try:
            while left and (piece := await upstream.read(min(left, 65536))):
                left -= len(piece)
                writer.write(piece)
                await writer.drain()
            broken += not left
        finally:
            asking.cancel()
            sink.close()
            writer.close()
            await asyncio.gather(asking, sink.wait_closed(), return_exceptions=True)

    async with stream_server(serve) as cut:
        url = f"http://127.0.0.1:{cut}"
        ended = await solstice(served, "get", served.job_id, "dist", url=url, directory=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "dist.tar").read_bytes() == CONTENT
    assert broken == 2


async def test_what_does_not_name_one_artifact_is_refused_with_those_there_are(
    served: HandedOut, tmp_path: Path
) -> None:
    several = await solstice(served, "get", served.run_id, "dist", directory=tmp_path)
    assert several.returncode == 2
    assert f"build-0 ({served.job_id}), build-1 (" in several.stderr
    none = await solstice(served, "get", served.run_id, "report", directory=tmp_path)
    assert "there is no artifact 'report'" in none.stderr
    assert "there are: dist" in none.stderr
