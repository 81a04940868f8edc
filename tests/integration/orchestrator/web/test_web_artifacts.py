"""The artifacts of a run, and the archive of one, from a real server."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.handed_out import CONTENT, DIGEST, HandedOut, handed_out
from tests.polling import wait_until

ETAG = f'"{DIGEST}"'


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[HandedOut]:
    async with handed_out(tmp_path) as found:
        yield found


@pytest.fixture
async def http(served: HandedOut) -> AsyncIterator[httpx2.AsyncClient]:
    url = f"{served.web.url}/api/v1"
    async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        yield client


async def test_artifacts_of_a_run_are_listed_with_their_digests(
    served: HandedOut, http: httpx2.AsyncClient
) -> None:
    answer = await http.get(f"/runs/{served.run_id}/artifacts")
    (artifact,) = answer.json()["artifacts"]
    assert (artifact["name"], artifact["job"], artifact["job_id"]) == ("dist", "build-0", served.job_id)
    assert (artifact["digest"], artifact["size"], artifact["files"]) == (DIGEST, len(CONTENT), 3)
    assert artifact["created_at"] < artifact["expires_at"]
    assert (await http.get("/runs/unknown/artifacts")).status_code == 404


async def test_the_archive_comes_as_a_download_with_its_digest(
    served: HandedOut, http: httpx2.AsyncClient
) -> None:
    answer = await http.get(f"/jobs/{served.job_id}/artifacts/dist")
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert answer.headers["content-disposition"] == 'attachment; filename="build-0-dist.tar"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["etag"] == ETAG
    encoded = base64.b64encode(bytes.fromhex(DIGEST)).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{encoded}:"


@pytest.mark.parametrize(
    ("header", "first", "end"),
    [
        ("bytes=0-", 0, len(CONTENT)),
        ("bytes=0-0", 0, 1),
        ("bytes=1000-299999", 1000, 300_000),
        ("bytes=-10", len(CONTENT) - 10, len(CONTENT)),
        (f"bytes=-{2 * len(CONTENT)}", 0, len(CONTENT)),
        (f"bytes={len(CONTENT) - 1}-{3 * len(CONTENT)}", len(CONTENT) - 1, len(CONTENT)),
    ],
)
async def test_a_part_of_it_comes_alone(
    served: HandedOut, http: httpx2.AsyncClient, header: str, first: int, end: int
) -> None:
    headers = {"Range": header, "If-Range": ETAG}
    answer = await http.get(f"/jobs/{served.job_id}/artifacts/dist", headers=headers)
    assert (answer.status_code, answer.content) == (206, CONTENT[first:end])
    assert answer.headers["content-range"] == f"bytes {first}-{end - 1}/{len(CONTENT)}"


@pytest.mark.parametrize(
    "headers",
    [
        {"Range": "bytes=5-", "If-Range": '"another"'},
        {"Range": "bytes=5-", "If-Range": "Sat, 28 Nov 2026 00:00:00 GMT"},
        {"Range": "lines=5-"},
        {"Range": "bytes=9-5"},
        {"Range": "bytes=0-1,5-6"},
    ],
)
async def test_a_range_of_another_archive_or_none_that_is_understood_brings_the_whole(
    served: HandedOut, http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await http.get(f"/jobs/{served.job_id}/artifacts/dist", headers=headers)
    assert (answer.status_code, len(answer.content)) == (200, len(CONTENT))


async def test_bytes_that_it_does_not_have_are_refused(served: HandedOut, http: httpx2.AsyncClient) -> None:
    headers = {"Range": f"bytes={len(CONTENT)}-"}
    answer = await http.get(f"/jobs/{served.job_id}/artifacts/dist", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (416, "no_such_range")
    assert answer.headers["content-range"] == f"bytes */{len(CONTENT)}"


async def test_what_is_not_there_is_said(served: HandedOut, http: httpx2.AsyncClient) -> None:
    unknown = await http.get(f"/jobs/{served.job_id}/artifacts/..%2f..%2fetc%2fpasswd")
    assert unknown.status_code == 404
    unknown = await http.get(f"/jobs/{served.job_id}/artifacts/report")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    served.archive.unlink()
    missing = await http.get(f"/jobs/{served.job_id}/artifacts/dist")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "archive_missing")
    assert "ARTIFACT_DIRECTORY" in missing.json()["error"]["message"]


async def test_an_archive_that_is_removed_meanwhile_comes_whole(
    served: HandedOut, http: httpx2.AsyncClient
) -> None:
    async with http.stream("GET", f"/jobs/{served.job_id}/artifacts/dist") as answer:
        served.archive.unlink()
        content = b"".join([piece async for piece in answer.aiter_bytes()])
    assert content == CONTENT


def is_open(path: Path) -> bool:
    """Whether this process, which serves, has the file open."""
    open_files = set[str]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            open_files.add(str(link.readlink()))
    return str(path) in open_files


async def test_a_caller_that_leaves_leaves_no_open_file(served: HandedOut) -> None:
    served.archive.write_bytes(CONTENT * 64)
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(served.web.url).port)
    writer.write(
        f"GET /api/v1/jobs/{served.job_id}/artifacts/dist HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    )
    await reader.readexactly(4096)
    assert is_open(served.archive)
    writer.transport.abort()
    await wait_until(lambda: not is_open(served.archive))


async def test_the_page_of_the_run_leads_to_the_archive(served: HandedOut, http: httpx2.AsyncClient) -> None:
    page = (await http.get(f"{served.web.url}/runs/{served.run_id}")).text
    (link,) = re.findall(r'<a [^>]*href="([^"]*/artifacts/[^"]*)" download>dist</a>', page)
    assert f'<code title="{DIGEST}">{DIGEST[:16]}</code>' in page
    assert "1.0 MiB" in page
    assert (await http.get(f"{served.web.url}{link}")).content == CONTENT


async def test_a_run_without_artifacts_has_no_word_of_them(
    served: HandedOut, http: httpx2.AsyncClient
) -> None:
    other, _ = await served.web.plan()
    assert "<h2>Artifacts</h2>" not in (await http.get(f"{served.web.url}/runs/{other.run_id}")).text
