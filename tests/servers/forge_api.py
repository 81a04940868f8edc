"""A scripted fake of a forge's API, over real HTTP on loopback.

async with forge_api(Origin.GITHUB) as forge:
    forge.on("GET", r"/repos/(?P<repository>.+)/commits/(?P<sha>\\w+)", lambda request: Reply(document={...}))
    forge.next(Reply(status=500), Slow(seconds=3), Reset())     # the next three calls
    forge.behave(lambda request: Reply(status=502) if storm.is_set() else None)   # from now on
    forge.window = Window(calls=50, seconds=2)                  # a rate limit; `forge.broken` counts those past it
    ... forge.shown[("river/app", sha, "solstice")], forge.history[...], forge.calls
"""

import asyncio
import base64
import contextlib
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from solstice_common.messages import Source
from tests.servers.stream_server import stream_server

TOKEN: Final = "invented-token"

Key = tuple[str, str, str]
"""Repository, commit, context."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call as it arrived.

    `path` is decoded, below the API's base; `names` are the groups of the route.
    """

    at: float
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def token(self) -> str:
        """The credentials, from the header that has them."""
        given = self.headers.get("authorization", "") or self.headers.get("private-token", "")
        return given.rpartition(" ")[2]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer in place of the normal one, or a handler's."""

    status: int = 200
    document: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Delayed:
    """The call is carried out, and answered this much later.

    Also when the caller has gone away meanwhile. With `reply` that is the answer, and the call is not carried out.
    """

    seconds: float
    reply: Reply | None = None


@dataclass(frozen=True, kw_only=True)
class Reset:
    """The connection is cut instead of an answer.

    With `carried_out`, the forge first does what it was asked for.
    """

    carried_out: bool = False


@dataclass(frozen=True, kw_only=True)
class Truncated:
    """The call is carried out; half of the answer's body arrives, then the connection ends.

    `fits`: its content-length fits the half, as a careless proxy would have it; the connection goes on.
    """

    fits: bool = False


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change request.

    `fork` is the full name of the repository it comes from, when that is another one.
    """

    sha: str
    fork: str | None = None
    is_open: bool = True
    head_ref: str = "spring"


@dataclass(frozen=True, kw_only=True)
class Window:
    """A rate limit of so many calls per window; above it, `status`."""

    calls: int
    seconds: int
    status: int = 403
    prefix: str = "x-ratelimit"
    """The prefix of the headers; GitLab's is `ratelimit`."""


Trouble = Reply | Delayed | Reset | Truncated
Handler = Callable[[Request], Reply]
Sleep = Callable[[float], Awaitable[None]]


class ForgeApi:
    """One forge; open with `forge_api`."""

    def __init__(
        self, origin: Source, *, clock: Callable[[], float] = time.time, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.origin = origin
        self._clock = clock
        self._sleep = sleep
        self.url = ""
        self.token = TOKEN
        self.window: Window | None = None
        self.broken = 0
        """How many calls exceeded the window's limit."""
        self.calls: list[tuple[Request, int]] = []
        """Every call and the status of its answer; 0 without an answer."""
        self.slow_calls = 0
        """The slow calls under way."""
        self.shown: dict[Key, dict[str, Any]] = {}
        """The present statuses of each commit."""
        self.history: dict[Key, list[dict[str, Any]]] = {}
        """All statuses of each commit, in order."""
        self.checks: dict[int, dict[str, Any]] = {}
        """GitHub's check runs, by id."""
        self.tokens: dict[str, dict[str, Any]] = {}
        """GitHub's installation tokens, with the rights that were requested."""
        self.expiries: dict[str, float] = {}
        """When each of these tokens expires."""
        self.widen: dict[str, Any] = {}
        """What GitHub says of each further token in place of what was requested."""
        self.refs: dict[tuple[str, str], str] = {}
        """The commit of each repository and full ref.

        Of a ref to a tag object that is the tagged commit.
        """
        self.changes: dict[tuple[str, int], Change] = {}
        """Change requests, by repository and number."""
        self.rights: dict[tuple[str, str | int], str] = {}
        """The right of each repository and person: `admin`, `write` or `read`. GitLab's persons are numbers."""
        self.app_key = _app_key()
        self.app_id = 4711
        self.token_seconds = 3600.0
        self._next: deque[Trouble] = deque()
        self._behaviour: Callable[[Request], Trouble | None] = lambda _request: None
        self._routes: list[tuple[str, re.Pattern[str], Handler]] = []
        self._in_window: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[Any]] = set()
        _routes_of(self)
        _questions_of(self)

    @property
    def now(self) -> float:
        """Seconds since the epoch, on this forge's clock."""
        return self._clock()

    @property
    def app_pem(self) -> str:
        """The App's private key, as GitHub gives it."""
        return self.app_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        ).decode()

    @property
    def base(self) -> str:
        """The path of the API on this forge."""
        return {Source.GITHUB: "/api/v3", Source.GITLAB: "/api/v4"}.get(self.origin, "/api/v1")

    def on(self, method: str, pattern: str, handler: Handler) -> None:
        """Answer such calls by `handler`; the newest handler goes first."""
        self._routes.insert(0, (method, re.compile(pattern), handler))

    def next(self, *troubles: Trouble) -> None:
        """Set the behaviour of the next calls, one each."""
        self._next.extend(troubles)

    def behave(self, behaviour: Callable[[Request], Trouble | None]) -> None:
        """Set a function that decides about every call that `next` does not.

        None: the call is served normally.
        """
        self._behaviour = behaviour

    def show(self, key: Key, status: dict[str, Any]) -> None:
        """Set a commit's status."""
        self.shown[key] = status
        self.history.setdefault(key, []).append(status)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either end closes it."""
        self._writers.add(writer)
        if (task := asyncio.current_task()) is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await _read_request(reader, self.base, self._clock)) is not None:
                if not await self._answer(request, writer):
                    break
        self._writers.discard(writer)
        writer.close()

    async def close(self) -> None:
        """Close what is open, and cancel slow calls."""
        for task in list(self._tasks):
            task.cancel()
        for writer in list(self._writers):
            writer.transport.abort()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answer one call; False: the connection has ended."""
        trouble = self._next.popleft() if self._next else self._behaviour(request)
        limited, headers = self._count(request)
        if limited is not None:
            return await self._send(request, writer, limited, headers)
        match trouble:
            case Reply():
                return await self._send(request, writer, trouble, headers)
            case Reset(carried_out=carried_out):
                if carried_out:
                    self._carry_out(request)
                self.calls.append((request, 0))
                writer.transport.abort()
                return False
            case Delayed():
                # A task of its own: a caller that goes away does not stop what the forge has begun.
                self.slow_calls += 1
                task = asyncio.create_task(
                    self._later(request, writer, trouble, headers), name=f"slow {request.path}"
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                await asyncio.wait({task})
                return not writer.is_closing()
            case Truncated(fits=fits):
                whole = self._carry_out(request)
                text = json.dumps(whole.document).encode()
                half = text[: len(text) // 2]
                await self._send(
                    request, writer, whole, headers, body=half, length=None if fits else len(text)
                )
                return fits
            case None:
                return await self._send(request, writer, self._carry_out(request), headers)

    async def _later(
        self, request: Request, writer: asyncio.StreamWriter, slow: Delayed, headers: Mapping[str, str]
    ) -> None:
        await self._sleep(slow.seconds)
        with contextlib.suppress(ConnectionError):
            await self._send(request, writer, slow.reply or self._carry_out(request), headers)

    def _count(self, request: Request) -> tuple[Reply | None, dict[str, str]]:
        if self.window is None:
            return None, {}
        window = self.window
        number = int(request.at // window.seconds)
        self._in_window[number] = used = self._in_window.get(number, 0) + 1
        headers = {
            f"{window.prefix}-limit": str(window.calls),
            f"{window.prefix}-remaining": str(max(0, window.calls - used)),
            f"{window.prefix}-reset": str((number + 1) * window.seconds),
        }
        if used <= window.calls:
            return None, headers
        self.broken += 1
        return Reply(status=window.status, document={"message": "API rate limit exceeded"}), headers

    def _carry_out(self, request: Request) -> Reply:
        for method, pattern, handler in self._routes:
            found = pattern.fullmatch(request.path) if method == request.method else None
            if found is not None:
                return handler(_with_names(request, found.groupdict()))
        return Reply(status=404, document={"message": "Not Found"})

    async def _send(
        self,
        request: Request,
        writer: asyncio.StreamWriter,
        reply: Reply,
        headers: Mapping[str, str],
        *,
        body: bytes | None = None,
        length: int | None = None,
    ) -> bool:
        self.calls.append((request, reply.status))
        text = (
            (b"" if reply.document is None else json.dumps(reply.document).encode()) if body is None else body
        )
        lines = [
            f"HTTP/1.1 {reply.status} Said",
            f"date: {formatdate(self.now, usegmt=True)}",
            f"content-length: {len(text) if length is None else length}",
            "content-type: application/json",
        ]
        lines += [f"{name}: {value}" for name, value in {**headers, **reply.headers}.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + text)
        await writer.drain()
        return True

    def allows(self, request: Request) -> bool:
        """Whether the caller's credentials belong to the source or to an installation."""
        return request.token == self.token or request.token in self.tokens

    def is_app(self, request: Request) -> bool:
        """Whether the caller signed in with the App's key, as GitHub requires."""
        head, _, signature = request.token.rpartition(".")
        try:
            self.app_key.public_key().verify(
                _decoded(signature), head.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
            header, claims = (json.loads(_decoded(part)) for part in head.split("."))
        except (InvalidSignature, ValueError):
            return False
        now = self.now
        return bool(
            header == {"alg": "RS256", "typ": "JWT"}
            and claims["iss"] == str(self.app_id)
            and claims["iat"] <= now < claims["exp"] <= now + 600
        )


@cache
def _app_key() -> rsa.RSAPrivateKey:
    """Made once, since it takes longer than most tests."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _with_names(request: Request, names: Mapping[str, str]) -> Request:
    return Request(
        at=request.at,
        method=request.method,
        path=request.path,
        query=request.query,
        headers=request.headers,
        body=request.body,
        names=names,
    )


async def _read_request(
    reader: asyncio.StreamReader, base: str, clock: Callable[[], float]
) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Request(
        at=clock(),
        method=method,
        path=unquote(parts.path.removeprefix(base)),
        query=dict(parse_qsl(parts.query)),
        headers=headers,
        body=json.loads(body) if body else None,
    )


def _routes_of(forge: ForgeApi) -> None:
    if forge.origin is Source.GITLAB:
        forge.on(
            "POST", r"/projects/(?P<repository>.+)/statuses/(?P<sha>\w+)", lambda one: _gitlab(forge, one)
        )
        return
    forge.on("POST", r"/repos/(?P<repository>.+)/statuses/(?P<sha>\w+)", lambda one: _status(forge, one))
    if forge.origin is Source.GITHUB:
        forge.on("GET", r"/repos/(?P<repository>.+)/installation", lambda one: _installation(forge, one))
        forge.on(
            "POST", r"/app/installations/(?P<id>\d+)/access_tokens", lambda one: _access_token(forge, one)
        )
        forge.on("POST", r"/repos/(?P<repository>.+)/check-runs", lambda one: _new_check(forge, one))
        forge.on(
            "PATCH", r"/repos/(?P<repository>.+)/check-runs/(?P<id>\d+)", lambda one: _old_check(forge, one)
        )


_STATES: Final = {
    Source.GITHUB: {"error", "failure", "pending", "success"},
    Source.GITEA: {"error", "failure", "pending", "success", "warning"},
    Source.FORGEJO: {"error", "failure", "pending", "success", "warning"},
}
_UNAUTHORIZED: Final = Reply(status=401, document={"message": "Bad credentials"})


def _status(forge: ForgeApi, request: Request) -> Reply:
    if not forge.allows(request):
        return _UNAUTHORIZED
    body, context = request.body, request.body["context"]
    key = (request.names["repository"], request.names["sha"], context)
    problem = ""
    if body["state"] not in _STATES[forge.origin]:
        problem = "state is not included in the list"
    elif forge.origin is Source.GITHUB:
        described = body.get("description") or ""
        if len(described) > 140:
            problem = "description is too long (maximum is 140 characters)"
        elif any(ord(each) > 0xFFFF for each in described + context):
            problem = "description doesn't accept 4-byte Unicode"
        elif len(forge.history.get(key, ())) >= 1000:
            problem = "This SHA and context has reached the maximum number of statuses."
    if problem:
        errors = [{"resource": "Status", "code": "custom", "message": problem}]
        return Reply(status=422, document={"message": "Validation Failed", "errors": errors})
    shown = {**body, "id": sum(map(len, forge.history.values())) + 1}
    forge.show(key, shown)
    return Reply(status=201, document=shown)


def _gitlab(forge: ForgeApi, request: Request) -> Reply:
    if not forge.allows(request):
        return Reply(status=401, document={"message": "401 Unauthorized"})
    body = request.body
    if body["state"] not in {"pending", "running", "success", "failed", "canceled", "skipped"}:
        return Reply(status=400, document={"error": "state does not have a valid value"})
    if any(len(str(body.get(name) or "")) > 255 for name in ("description", "target_url", "ref", "name")):
        return Reply(
            status=400, document={"message": {"description": ["is too long (maximum is 255 characters)"]}}
        )
    key = (request.names["repository"], request.names["sha"], body["name"])
    if key in forge.shown and forge.shown[key]["state"] == body["state"]:
        event = {
            "pending": "enqueue",
            "running": "run",
            "success": "success",
            "failed": "drop",
            "canceled": "cancel",
        }
        words = f"Cannot transition status via :{event[body['state']]} from :{body['state']}"
        return Reply(status=400, document={"message": words})
    shown = {**body, "id": sum(map(len, forge.history.values())) + 1}
    forge.show(key, shown)
    return Reply(status=201, document=shown)


def _installation(forge: ForgeApi, request: Request) -> Reply:
    return Reply(document={"id": 99}) if forge.is_app(request) else _UNAUTHORIZED


def _access_token(forge: ForgeApi, request: Request) -> Reply:
    if not forge.is_app(request):
        return _UNAUTHORIZED
    token = f"ghs_{forge.app_id}_{len(forge.tokens) + 1}"
    forge.tokens[token] = dict(request.body)
    forge.expiries[token] = forge.now + forge.token_seconds
    rights = {
        "permissions": {**request.body["permissions"], "metadata": "read"},
        "repository_selection": "selected",
        "repositories": [{"name": name} for name in request.body["repositories"]],
    }
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(forge.expiries[token]))
    return Reply(status=201, document={"token": token, "expires_at": expires, **rights, **forge.widen})


def _may_check(forge: ForgeApi, request: Request) -> bool:
    return bool(forge.tokens.get(request.token, {}).get("permissions", {}).get("checks") == "write")


def _new_check(forge: ForgeApi, request: Request) -> Reply:
    if not _may_check(forge, request):
        return Reply(status=403, document={"message": "Resource not accessible by integration"})
    number = len(forge.checks) + 1
    return _stored_check(forge, request, number, {**request.body, "id": number})


def _old_check(forge: ForgeApi, request: Request) -> Reply:
    number = int(request.names["id"])
    if not _may_check(forge, request):
        return Reply(status=403, document={"message": "Resource not accessible by integration"})
    if number not in forge.checks:
        return Reply(status=404, document={"message": "Not Found"})
    return _stored_check(forge, request, number, {**forge.checks[number], **request.body})


def _stored_check(forge: ForgeApi, request: Request, number: int, check: dict[str, Any]) -> Reply:
    forge.checks[number] = check
    forge.show((request.names["repository"], check["head_sha"], check["name"]), check)
    return Reply(status=201, document=check)


def _questions_of(forge: ForgeApi) -> None:
    """Answer lookups for deliveries: commits of refs, heads of change requests, rights."""
    if forge.origin is Source.GITLAB:
        at = r"/projects/(?P<repository>.+)"
        forge.on(
            "GET", at + r"/repository/(?P<kind>branches|tags)/(?P<name>.+)", lambda one: _ref(forge, one)
        )
        forge.on("GET", at + r"/merge_requests/(?P<number>\d+)", lambda one: _change(forge, one))
        forge.on("GET", at + r"/members/all/(?P<person>\d+)", lambda one: _rights(forge, one))
        return
    at = r"/repos/(?P<repository>[^/]+/[^/]+)"
    if forge.origin is Source.GITHUB:
        forge.on("GET", at + r"/commits/(?P<kind>heads|tags)/(?P<name>.+)", lambda one: _ref(forge, one))
        forge.on("GET", at + r"/compare/(?P<sha>\w+)\.\.\.(?P<name>.+)", lambda one: _compared(forge, one))
    else:
        forge.on("GET", at + r"/(?P<kind>branches|tags)/(?P<name>.+)", lambda one: _ref(forge, one))
    forge.on("GET", at + r"/pulls/(?P<number>\d+)", lambda one: _change(forge, one))
    forge.on("GET", at + r"/collaborators/(?P<person>.+)/permission", lambda one: _rights(forge, one))


_NOT_FOUND: Final = Reply(status=404, document={"message": "Not Found"})


def _ref(forge: ForgeApi, request: Request) -> Reply:
    if not forge.allows(request):
        return _UNAUTHORIZED
    kind = "tags" if request.names["kind"] == "tags" else "heads"
    sha = forge.refs.get((request.names["repository"], f"refs/{kind}/{request.names['name']}"))
    tag_object = "0b" * 20
    if sha is None:
        missing = Reply(status=422, document={"message": "No commit found for SHA"})
        return missing if forge.origin is Source.GITHUB else _NOT_FOUND
    if forge.origin is Source.GITHUB:
        return Reply(document={"sha": sha, "commit": {"message": "m"}})
    if kind == "tags":
        return Reply(document={"id": tag_object, "target": tag_object, "commit": {"id": sha, "sha": sha}})
    return Reply(document={"name": request.names["name"], "commit": {"id": sha}})


def _compared(forge: ForgeApi, request: Request) -> Reply:
    if not forge.allows(request):
        return _UNAUTHORIZED
    head = forge.refs.get((request.names["repository"], f"refs/heads/{request.names['name']}"))
    if head is None:
        return _NOT_FOUND
    return Reply(document={"status": "identical" if head == request.names["sha"] else "diverged"})


def _change(forge: ForgeApi, request: Request) -> Reply:
    repository, number = request.names["repository"], int(request.names["number"])
    change = forge.changes.get((repository, number))
    if not forge.allows(request):
        return _UNAUTHORIZED
    if change is None:
        return _NOT_FOUND
    if forge.origin is Source.GITLAB:
        return Reply(
            document={
                "iid": number,
                "sha": change.sha,
                "state": "opened" if change.is_open else "closed",
                "source_project_id": 2 if change.fork else 1,
                "target_project_id": 1,
                "source_branch": change.head_ref,
                "target_branch": "main",
            }
        )
    base, head = (
        {"full_name": name, "clone_url": f"{forge.url}/{name}.git"}
        for name in (repository, change.fork or repository)
    )
    return Reply(
        document={
            "number": number,
            "state": "open" if change.is_open else "closed",
            "head": {
                "ref": change.head_ref,
                "sha": change.sha,
                "repo": head,
                "repo_id": 2 if change.fork else 1,
            },
            "base": {"ref": "main", "sha": "0c" * 20, "repo": base, "repo_id": 1},
        }
    )


def _rights(forge: ForgeApi, request: Request) -> Reply:
    if not forge.allows(request):
        return _UNAUTHORIZED
    person = request.names["person"]
    right = forge.rights.get(
        (request.names["repository"], int(person) if forge.origin is Source.GITLAB else person)
    )
    if right is None:
        return _NOT_FOUND
    if forge.origin is Source.GITLAB:
        levels = {"admin": 40, "write": 30, "read": 20}
        return Reply(document={"id": int(person), "access_level": levels[right]})
    return Reply(document={"permission": right, "user": {"login": person}})


@asynccontextmanager
async def forge_api(
    origin: Source, *, clock: Callable[[], float] = time.time, sleep: Sleep = asyncio.sleep
) -> AsyncIterator[ForgeApi]:
    """A forge of that kind that listens on 127.0.0.1. `clock` and `sleep` give its time."""
    forge = ForgeApi(origin, clock=clock, sleep=sleep)
    async with stream_server(forge.serve) as port:
        forge.url = f"http://127.0.0.1:{port}"
        try:
            yield forge
        finally:
            await forge.close()
