"""Sends signed webhooks by the thousand, with a cheap HTTP client.

The client costs little enough to share two cores with the server.
"""

import asyncio
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SECRET = "a-secret-of-the-bench"
BODY_BYTES = 10_000
ACCEPTED = 202


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    `latency_seconds` runs from the moment the request was due, so a queue in front of the server counts.
    """

    status: int
    latency_seconds: float


def push(number: int, repository: str = "https://forge.example/river/otter.git") -> tuple[bytes, str]:
    """A unique Forgejo push of about 10 KB, and its commit."""
    commit = hashlib.sha1(f"{number}-{uuid.uuid4()}".encode(), usedforsecurity=False).hexdigest()
    return push_of(commit, repository, ref=f"refs/heads/topic-{number}"), commit


def push_of(commit: str, repository: str, *, ref: str) -> bytes:
    """A Forgejo push of that commit, about BODY_BYTES long.

    Other commits before it fill the length.
    """
    document: dict[str, Any] = {
        "ref": ref,
        "before": "0" * 40,
        "after": commit,
        "compare_url": "",
        "commits": [],
        "head_commit": _commit(commit, repository),
        "repository": {
            "id": 7,
            "name": "otter",
            "full_name": "river/otter",
            "clone_url": repository,
            "html_url": repository.removesuffix(".git"),
            "default_branch": "main",
        },
        "pusher": {"login": "marten", "username": "marten"},
        "sender": {"login": "marten", "username": "marten"},
    }
    size, commits = len(json.dumps(document)), document["commits"]
    while size < BODY_BYTES:
        commit = hashlib.sha1(commit.encode(), usedforsecurity=False).hexdigest()
        commits.append(_commit(commit, repository))
        size += len(json.dumps(commits[-1])) + 2
    return json.dumps(document).encode()


def _commit(commit: str, repository: str) -> dict[str, Any]:
    """A commit as Forgejo sends it, as unique in content as a real one."""
    files = [f"services/{commit[at : at + 6]}/module_{commit[at + 6 : at + 8]}.py" for at in (0, 10, 20)]
    person = {"name": "Marten", "email": "marten@forge.example", "username": "marten"}
    return {
        "id": commit,
        "message": f"Let {commit[4:12]} take {commit[12:22]} for granted\n\nAs {commit[22:30]} said in review.\n",
        "url": f"{repository.removesuffix('.git')}/commit/{commit}",
        "author": person,
        "committer": person,
        "verification": {"verified": True, "signature": hashlib.sha512(commit.encode()).hexdigest()},
        "timestamp": "2026-01-31T12:00:00Z",
        "added": files[:1],
        "removed": [],
        "modified": files[1:],
    }


def request_bytes(body: bytes, *, host: str = "127.0.0.1") -> bytes:
    """The whole HTTP/1.1 request, signed as by Forgejo, with a new delivery id."""
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    head = (
        "POST /webhooks/forgejo HTTP/1.1\r\n"
        f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"X-Forgejo-Event: push\r\nX-Forgejo-Delivery: {uuid.uuid4()}\r\nX-Forgejo-Signature: {signature}\r\n\r\n"
    )
    return head.encode() + body


async def flood(port: int, requests: Sequence[bytes], *, connections: int) -> list[Answer]:
    """Send all requests as fast as answers come, over so many kept-alive connections."""
    waiting = iter(requests)
    answers: list[Answer] = []

    async def worker() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for request in waiting:
                answer = await _exchange(reader, writer, request, due=time.perf_counter())
                answers.append(answer)
        finally:
            writer.close()
            await writer.wait_closed()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(worker())
    return answers


async def at_rate(port: int, requests: Sequence[bytes], *, per_second: float) -> list[float]:
    """`paced`, with the moments when each was due, in seconds since the epoch.

    RuntimeError when one is not accepted.
    """
    began_at = time.time()
    for answer in await paced(port, requests, per_second=per_second):
        if answer.status != ACCEPTED:
            raise RuntimeError(f"a webhook was answered {answer.status}")
    return [began_at + number / per_second for number in range(len(requests))]


async def paced(port: int, requests: Sequence[bytes], *, per_second: float) -> list[Answer]:
    """Send each request at its own moment (open loop); return the answers in order."""
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    began = time.perf_counter()

    async def send(number: int, request: bytes) -> Answer:
        due = began + number / per_second
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        reader, writer = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        answer = await _exchange(reader, writer, request, due=due)
        free.append((reader, writer))
        return answer

    async with asyncio.TaskGroup() as group:
        sending = [group.create_task(send(number, request)) for number, request in enumerate(requests)]
    for _, writer in free:
        writer.close()
        await writer.wait_closed()
    return [each.result() for each in sending]


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, *, due: float
) -> Answer:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            await reader.readexactly(int(value))
    return Answer(int(head.split(b" ", 2)[1]), time.perf_counter() - due)
