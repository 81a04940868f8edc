"""The deliveries and hooks of a fake forge, and its heads.

GitHub and GitLab have the deliveries, Gitea and Forgejo the heads.

record = Record(forge, url=lambda: f"{service}/webhooks/acme", secret="...")
hook = record.hook("repos/river/otter")                     # or "orgs/river", "app", "projects/river/otter", "groups/river"
await record.event("guid-1", "push", body)                  # is delivered by every hook, over real HTTP, and remembered
record.failed(hook, "guid-2")                               # an attempt that failed, long ago or now
await record.settled()                                      # everything that was asked for again is delivered, or failed

show_heads(forge)                                           # branches and pulls of `forge.refs` and `forge.changes`
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx2
import orjson

from solstice_common.messages import Source
from solstice_forge.forges.samples import sign
from tests.servers.forge_api import Change, ForgeApi, Reply, Request

_DENIED = Reply(status=401, document={"message": "Bad credentials"})
_NOT_FOUND = Reply(status=404, document={"message": "Not Found"})


@dataclass(frozen=True, kw_only=True)
class DeliveryAttempt:
    """One delivery attempt; `status` 0 means that no server was reached."""

    id: int
    guid: str
    event: str
    status: int
    at: float
    redelivery: bool = False


@dataclass(kw_only=True)
class FakeHook:
    """A webhook of the forge; `place` is the path of its owner."""

    id: int
    place: str
    url: Callable[[], str]
    tried: list[DeliveryAttempt] = field(default_factory=list)

    def of(self, guid: str) -> list[DeliveryAttempt]:
        return [each for each in self.tried if each.guid == guid]


class HookRecord:
    """The hooks of one forge and their deliveries, as its API shows them."""

    def __init__(
        self,
        forge: ForgeApi,
        *,
        url: Callable[[], str],
        secret: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.forge = forge
        self.hooks: list[FakeHook] = []
        self.requested: list[tuple[float, str]] = []
        """When each delivery was requested again."""
        self.most_per_page = 1000
        self._url = url
        self._secret = secret
        self._clock = clock
        self._bodies: dict[str, tuple[str, bytes]] = {}
        self._tries = 0
        self._tasks: set[asyncio.Task[None]] = set()
        if forge.origin is Source.GITHUB:
            forge.on("GET", "/app/hook/config", self._app)
            forge.on("GET", r"/(?P<place>(?:repos/[^/]+/[^/]+|orgs/[^/]+))/hooks", self._hooks)
            where = (
                r"/(?P<place>app|(?:repos/[^/]+/[^/]+|orgs/[^/]+))/(?:hook|hooks/(?P<hook>\d+))/deliveries"
            )
            forge.on("GET", where, self._deliveries)
            forge.on("POST", where + r"/(?P<id>\d+)/attempts", self._again)
        else:
            at = r"/(?P<place>(?:projects|groups)/.+)/hooks"
            forge.on("GET", at, self._hooks)
            forge.on("GET", at + r"/(?P<hook>\d+)/events", self._deliveries)
            forge.on("POST", at + r"/(?P<hook>\d+)/events/(?P<id>\d+)/resend", self._again)

    def hook(self, place: str, *, url: str | None = None) -> FakeHook:
        """A hook that calls us, or another server at `url`."""
        made = FakeHook(id=len(self.hooks) + 1, place=place, url=self._url if url is None else lambda: url)
        self.hooks.append(made)
        return made

    async def event(self, guid: str, name: str, body: bytes) -> None:
        """Deliver an event by every hook, and record the results."""
        self._bodies[guid] = (name, body)
        for hook in self.hooks:
            await self._deliver(hook, guid, redelivery=False)

    def failed(
        self, hook: FakeHook, guid: str, *, status: int = 0, age: float = 60.0, body: bytes = b"{}"
    ) -> None:
        """Record a failed attempt of that age; nothing is sent."""
        self._bodies.setdefault(guid, ("push", body))
        self._remember(hook, guid, status, self._clock() - age, redelivery=False)

    async def settled(self) -> None:
        """Wait until every requested redelivery is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _remember(self, hook: FakeHook, guid: str, status: int, at: float, *, redelivery: bool) -> None:
        self._tries += 1
        event = self._bodies[guid][0]
        hook.tried.append(
            DeliveryAttempt(
                id=self._tries, guid=guid, event=event, status=status, at=at, redelivery=redelivery
            )
        )

    async def _deliver(self, hook: FakeHook, guid: str, *, redelivery: bool) -> None:
        event, body = self._bodies[guid]
        headers = sign(
            self.forge.origin, self._secret, event=event, body=body, delivery_id=guid, now=time.time()
        )
        status = 0
        try:
            async with httpx2.AsyncClient(timeout=10, trust_env=False) as client:
                status = (await client.post(hook.url(), content=body, headers=headers)).status_code
        except httpx2.HTTPError:
            pass
        self._remember(hook, guid, status, self._clock(), redelivery=redelivery)

    def _app(self, request: Request) -> Reply:
        if not self.forge.is_app(request):
            return _DENIED
        urls = [each.url() for each in self.hooks if each.place == "app"]
        return Reply(document={"url": "".join(urls), "content_type": "json"})

    def _allowed(self, request: Request) -> bool:
        return self.forge.is_app(request) if request.path.startswith("/app/") else self.forge.allows(request)

    def _hooks(self, request: Request) -> Reply:
        if not self._allowed(request):
            return _DENIED
        hooks = [each for each in self.hooks if each.place == request.names["place"]]
        if not hooks and request.names["place"].startswith(("orgs/", "groups/")):
            return _NOT_FOUND
        github = self.forge.origin is Source.GITHUB
        documents = [
            {
                "id": each.id,
                "active": True,
                **({"config": {"url": each.url()}} if github else {"url": each.url()}),
            }
            for each in hooks
        ]
        return _page(self.forge, request, documents, self.most_per_page)

    def _found(self, request: Request) -> FakeHook | None:
        place, number = request.names["place"], request.names.get("hook")
        found = [each for each in self.hooks if each.place == place and number in {None, str(each.id)}]
        return found[0] if found else None

    def _deliveries(self, request: Request) -> Reply:
        hook = self._found(request)
        if not self._allowed(request):
            return _DENIED
        if hook is None:
            return _NOT_FOUND
        newest_first = sorted(hook.tried, key=lambda each: -each.id)
        document = self._github if self.forge.origin is Source.GITHUB else self._gitlab
        return _page(self.forge, request, [document(hook, each) for each in newest_first], self.most_per_page)

    def _github(self, _hook: FakeHook, tried: DeliveryAttempt) -> dict[str, Any]:
        return {
            "id": tried.id,
            "guid": tried.guid,
            "delivered_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(tried.at)),
            "redelivery": tried.redelivery,
            "duration": 0.1,
            "status": "OK" if 200 <= tried.status < 300 else "failed to connect to host",
            "status_code": tried.status,
            "event": tried.event,
            "action": None,
            "installation_id": None,
            "repository_id": 1,
        }

    def _gitlab(self, hook: FakeHook, tried: DeliveryAttempt) -> dict[str, Any]:
        return {
            "id": tried.id,
            "url": hook.url(),
            "trigger": "push_hooks",
            "request_headers": {
                "Content-Type": "application/json",
                "Idempotency-Key": tried.guid,
                "X-Gitlab-Event": tried.event,
                "X-Gitlab-Token": "[REDACTED]",
            },
            "request_data": orjson.loads(self._bodies[tried.guid][1]),
            "response_headers": {},
            "response_body": "",
            "execution_duration": 0.1,
            "response_status": str(tried.status) if tried.status else "internal error",
        }

    def _again(self, request: Request) -> Reply:
        hook = self._found(request)
        if not self._allowed(request):
            return _DENIED
        tried = [each for each in hook.tried if str(each.id) == request.names["id"]] if hook else []
        if hook is None or not tried:
            return _NOT_FOUND
        self.requested.append((self._clock(), tried[0].guid))
        task = asyncio.create_task(self._deliver(hook, tried[0].guid, redelivery=True), name="redelivery")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Reply(status=202, document={})


def _page(forge: ForgeApi, request: Request, documents: Sequence[Mapping[str, Any]], most: int) -> Reply:
    """One page, and the place of the next one.

    GitHub's deliveries have a cursor, everything else a number.
    """
    size = min(int(request.query.get("per_page", request.query.get("limit", "30"))), most)
    by_cursor = "/deliveries" in request.path
    first = int(request.query.get("cursor", "v1_0").removeprefix("v1_")) if by_cursor else 0
    number = int(request.query.get("page", "1"))
    start = first if by_cursor else (number - 1) * size
    headers = {}
    if start + size < len(documents):
        following = {"cursor": f"v1_{start + size}"} if by_cursor else {"page": str(number + 1)}
        query = urlencode({**request.query, **following})
        headers["link"] = (
            f'<{forge.url}{forge.base}{request.path}?{query}>; rel="next", <{forge.url}>; rel="first"'
        )
    return Reply(document=list(documents[start : start + size]), headers=headers)


def show_heads(
    forge: ForgeApi,
    *,
    messages: Mapping[str, str] | None = None,
    clone_urls: Mapping[str, str] | None = None,
    most_per_page: int = 50,
) -> None:
    """Serve Gitea's and Forgejo's lists of `forge.refs` and `forge.changes`.

    Messages are by commit, URLs by repository.
    """

    def repositories() -> set[str]:
        return {name for name, _ in forge.refs} | {name for name, _ in forge.changes}

    def repository(request: Request) -> Reply:
        name = request.names["repository"]
        if not forge.allows(request):
            return _DENIED
        if name not in repositories():
            return _NOT_FOUND
        urls = {name: _repository(forge, name)["clone_url"], **(clone_urls or {})}
        return Reply(document={**_repository(forge, name), "clone_url": urls[name]})

    def branches(request: Request) -> Reply:
        if not forge.allows(request):
            return _DENIED
        found = [
            {
                "name": ref.removeprefix("refs/heads/"),
                "commit": {"id": sha, "message": (messages or {}).get(sha, "a change\n"), "added": None},
            }
            for (name, ref), sha in sorted(forge.refs.items())
            if name == request.names["repository"] and ref.startswith("refs/heads/")
        ]
        return _page(forge, request, found, most_per_page)

    def pulls(request: Request) -> Reply:
        if not forge.allows(request):
            return _DENIED
        found = [
            _pull(forge, name, number, change)
            for (name, number), change in sorted(forge.changes.items(), reverse=True)
            if name == request.names["repository"] and change.is_open
        ]
        return _page(forge, request, found, most_per_page)

    at = r"/repos/(?P<repository>[^/]+/[^/]+)"
    forge.on("GET", at, repository)
    forge.on("GET", at + "/branches", branches)
    forge.on("GET", at + "/pulls", pulls)


def _repository(forge: ForgeApi, name: str) -> dict[str, Any]:
    return {"full_name": name, "clone_url": f"{forge.url}/{name}.git", "default_branch": "main"}


def _pull(forge: ForgeApi, name: str, number: int, change: Change) -> dict[str, Any]:
    head = {"ref": change.head_ref, "sha": change.sha, "repo_id": 2 if change.fork else 1}
    return {
        "number": number,
        "state": "open",
        "draft": False,
        "updated_at": "2026-09-21T12:00:00Z",
        "head": {**head, "repo": _repository(forge, change.fork or name)},
        "base": {"ref": "main", "sha": "0c" * 20, "repo_id": 1, "repo": _repository(forge, name)},
    }
