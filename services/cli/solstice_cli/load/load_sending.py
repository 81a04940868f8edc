"""Sends the requests of a load: to the broker's queue, or as webhooks."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

import httpx2

from solstice_cli.demo.deliveries import RefChange, signed_delivery
from solstice_cli.load.load_plan import JobKind, LoadRequest
from solstice_cli.load.load_report import Sent
from solstice_cli.load.load_repository import BRANCH_PREFIX
from solstice_common.addresses.http_client import http_client
from solstice_common.addresses.system_errors import cause_in_words
from solstice_common.broker import Broker
from solstice_common.messages import Source, derive_request_id
from solstice_common.topology import jobs_route
from solstice_forge.commands.enqueue import EnqueueInput, EnqueueSettings, job_request, open_for_requests
from solstice_forge.relay.publication import publication

CALLS_AT_ONCE: Final = 64
"""How many webhooks wait for an answer at most; those due meanwhile wait, and it counts as their time."""
BATCH: Final = 256
"""The most messages that are published together."""
UNCONFIRMED: Final = 1024
"""How many messages wait for their confirms at most; those due meanwhile wait, and it counts as their time.

The time limit of a confirm begins when the message is published. A broker that syncs each message takes longer than that for 10,000.
"""
WEBHOOK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a load is sent for."""

    load_id: str
    """New for each load: it is a part of every key."""
    repo_url: str
    repositories: Sequence[str]
    """Their full names; requests are spread over them."""
    commits: Mapping[JobKind, str]
    runs_on: str | None = None

    def key(self, number: int) -> str:
        """Return the idempotency key, or the delivery id, of a request."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"solstice-load:{self.load_id}:{number}"))

    def request_id(self, number: int) -> str:
        """Return the request id of one that was sent to the queue."""
        return derive_request_id("manual", self.key(number))


class LoadSender(Protocol):
    """Sends requests that are due."""

    async def send(self, requests: Sequence[LoadRequest]) -> Sequence[str | None]:
        """Send these; return for each why it was not accepted, None when it was."""
        ...


async def send_all(
    sender: LoadSender, requests: Sequence[LoadRequest], answered: Callable[[Sequence[Sent]], None]
) -> None:
    """Send each request when it is due, however long earlier ones take.

    `answered` gets each batch of answers; requests that are due together make a batch.
    """
    began = time.time()

    async def send(batch: Sequence[LoadRequest]) -> None:
        refusals = await sender.send(batch)
        now = time.time()
        answered(
            [
                Sent(request=each, due_at=began + each.due_seconds, answered_at=now, refusal=refusal)
                for each, refusal in zip(batch, refusals, strict=True)
            ]
        )

    async with asyncio.TaskGroup() as group:
        for batch in _batches(requests):
            await asyncio.sleep(began + batch[0].due_seconds - time.time())
            group.create_task(send(batch))


def _batches(requests: Sequence[LoadRequest]) -> list[list[LoadRequest]]:
    batches: list[list[LoadRequest]] = []
    for request in requests:
        if batches and len(batches[-1]) < BATCH and batches[-1][0].due_seconds == request.due_seconds:
            batches[-1].append(request)
        else:
            batches.append([request])
    return batches


@dataclass(frozen=True, slots=True)
class QueuePublisher:
    """Publishes `jobrequest.v1` messages with confirms."""

    broker: Broker
    settings: EnqueueSettings
    target: Target
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UNCONFIRMED))
    _next: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the batch that waits for room: two would each take a part, and none could go on."""

    @staticmethod
    @asynccontextmanager
    async def open(settings: EnqueueSettings, target: Target) -> AsyncIterator["QueuePublisher"]:
        """A sender to the broker of the settings; raises what `open_for_requests` raises."""
        async with open_for_requests(settings, "solstice load") as broker:
            yield QueuePublisher(broker, settings, target)

    async def send(self, requests: Sequence[LoadRequest]) -> Sequence[str | None]:
        """As LoadSender says."""
        async with self._next:
            for _ in requests:
                await self.free.acquire()
        try:
            messages = [
                publication(self._body(request), jobs_route(self.settings), attempt=1) for request in requests
            ]
            published = await self.broker.publish(messages)
        finally:
            for _ in requests:
                self.free.release()
        return [None if each.confirmed else f"{each.status}: {each.detail}" for each in published]

    def _body(self, request: LoadRequest) -> bytes:
        made = job_request(
            EnqueueInput(
                repo_url=self.target.repo_url,
                repo_full_name=self.target.repositories[request.repository - 1],
                commit_sha=self.target.commits[request.kind],
                runs_on=self.target.runs_on,
                priority=None if request.priority is None else request.priority.value,
                idempotency_key=self.target.key(request.number),
            ),
            now=datetime.now(UTC),
            new_id=uuid.uuid4(),
        )
        return made.encode()


@dataclass(frozen=True, slots=True)
class WebhookPoster:
    """Sends pushes as a forge would, each of a branch of its own."""

    http: httpx2.AsyncClient
    url: str
    source: Source
    secret: str
    target: Target
    free: asyncio.Semaphore

    @staticmethod
    @asynccontextmanager
    async def open(url: str, source: Source, secret: str, target: Target) -> AsyncIterator["WebhookPoster"]:
        """A sender to the webhook at `url`."""
        limits = httpx2.Limits(max_connections=CALLS_AT_ONCE, max_keepalive_connections=CALLS_AT_ONCE)
        async with http_client(url, timeout=WEBHOOK_SECONDS, limits=limits) as http:
            yield WebhookPoster(http, url, source, secret, target, asyncio.Semaphore(CALLS_AT_ONCE))

    async def send(self, requests: Sequence[LoadRequest]) -> Sequence[str | None]:
        """As LoadSender says."""
        return await asyncio.gather(*map(self._call, requests))

    async def _call(self, request: LoadRequest) -> str | None:
        key = self.target.key(request.number)
        delivery = signed_delivery(
            self.source,
            "push",
            RefChange(
                repo_url=self.target.repo_url,
                repo_full_name=self.target.repositories[request.repository - 1],
                # A branch of its own: no push supersedes another, none is a copy of another.
                ref=f"{BRANCH_PREFIX}{self.target.load_id}-{request.number}",
                commit_sha=self.target.commits[request.kind],
            ),
            secret=self.secret,
            delivery_id=key,
            now=time.time(),
        )
        async with self.free:
            try:
                answer = await self.http.post(self.url, content=delivery.body, headers=dict(delivery.headers))
            except httpx2.HTTPError as error:
                return f"no answer: {cause_in_words(error)}"
        return None if answer.status_code == httpx2.codes.ACCEPTED else f"answered {answer.status_code}"
