"""Webhooks of the four forges for real commits, repeated until they are answered."""

import asyncio
import random
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx2
import orjson

from solstice_common.messages import Source
from solstice_forge.forges.samples import push_event_name, sign
from tests.webhooks.deliveries import deliveries

REF: Final = "refs/heads/main"
TEMPLATES: Final[Mapping[Source, str]] = {
    Source.GITHUB: "github/push-branch",
    Source.FORGEJO: "forgejo/push-branch",
    Source.GITEA: "gitea/push-branch",
    Source.GITLAB: "gitlab/push-branch-signed",
}
"""A push of each forge as it documents it; GitLab's signed, as from GitLab 19."""
PAUSE_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookCall:
    """One webhook call, as a forge would make it; repeats have the same delivery id."""

    source: Source
    commit: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A 2xx answer."""

    call: WebhookCall
    decision: str
    request_ids: tuple[str, ...]


def secrets() -> dict[str, str]:
    """The secrets by which forge-integration accepts the calls as genuine."""
    return {
        "GITHUB_WEBHOOK_SECRET": _secret(Source.GITHUB),
        "FORGEJO_WEBHOOK_SECRET": _secret(Source.FORGEJO),
        "GITEA_WEBHOOK_SECRET": _secret(Source.GITEA),
        "GITLAB_SIGNING_TOKEN": _secret(Source.GITLAB),
    }


def push(source: Source, repo_url: str, commit: str, *, now: float, full_name: str = "") -> WebhookCall:
    """The push of `commit` under a new delivery id; `full_name` is not for GitLab."""
    payload = orjson.loads(deliveries()[TEMPLATES[source]].body)
    payload.update(ref=REF, after=commit)
    if source is Source.GITLAB:
        payload["checkout_sha"] = commit
        payload["project"]["git_http_url"] = repo_url
    else:
        payload["head_commit"]["id"] = commit
        payload["repository"]["clone_url"] = repo_url
        payload["repository"]["full_name"] = full_name or payload["repository"]["full_name"]
    body = orjson.dumps(payload)
    headers = sign(
        source,
        _secret(source),
        event=push_event_name(source, REF),
        body=body,
        delivery_id=str(uuid.uuid4()),
        now=now,
    )
    return WebhookCall(source=source, commit=commit, body=body, headers=headers)


def with_copies(
    pushes: Sequence[WebhookCall], repo_urls: Mapping[Source, str], *, now: float
) -> list[WebhookCall]:
    """Send every third push twice, and every third again later under another delivery id."""
    rng = random.Random(2)
    calls = [(float(place), call) for place, call in enumerate(pushes)]
    for place, call in enumerate(pushes):
        later = place + rng.uniform(0.5, 8)
        if place % 3 == 0:
            calls.append((later, call))
        elif place % 3 == 1:
            again = push(call.source, repo_urls[call.source], call.commit, now=now)
            calls.append((later, again))
    return [call for _, call in sorted(calls, key=lambda each: each[0])]


def _secret(source: Source) -> str:
    return deliveries()[TEMPLATES[source]].secret


class Sender:
    """Sends each call until it is answered with 2xx, and remembers the answers."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._answered = asyncio.Event()
        self.answers: list[Answer] = []
        self.unanswered = 0
        """How many calls failed: no server, or a connection that ended before the answer."""
        self.refused: list[str] = []

    async def send(self, calls: Sequence[WebhookCall], *, at_once: int = 6) -> None:
        """Return when every call has its 2xx."""
        waiting = deque(calls)
        async with asyncio.TaskGroup() as tasks:
            for each in range(at_once):
                tasks.create_task(self._send(waiting), name=f"sender {each}")

    async def answered(self, count: int) -> None:
        """Wait until so many calls have been answered in all."""
        while len(self.answers) < count:
            self._answered.clear()
            await self._answered.wait()

    async def _send(self, waiting: deque[WebhookCall]) -> None:
        while waiting:
            call = waiting.popleft()
            while not await self._is_answered(call):  # noqa: ASYNC110  a service that has not started sends no notification
                await asyncio.sleep(PAUSE_SECONDS)

    async def _is_answered(self, call: WebhookCall) -> bool:
        try:
            answer = await self._client.post(
                f"/webhooks/{call.source}", content=call.body, headers=dict(call.headers)
            )
        except httpx2.TransportError:
            self.unanswered += 1
            return False
        if not answer.is_success:
            self.refused.append(f"{answer.status_code} {answer.text}")
            return False
        document = answer.json()
        self.answers.append(
            Answer(call=call, decision=document["decision"], request_ids=tuple(document["request_ids"]))
        )
        self._answered.set()
        return True
