"""Mutated deliveries of every forge, signed again, get only answers that we define."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.broker.protocol import BrokerHealth
from solstice_common.messages import JobRequestV1, Source
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.edge.app import AppParts, create_app
from solstice_forge.forges.events import decode_lacking
from solstice_forge.forges.samples import sign
from solstice_forge.inbox.keep_results import new
from solstice_forge.inbox.protocol import KeepResult, NewDelivery
from solstice_forge.metrics import Metrics
from tests.webhooks.corpus import recorded
from tests.webhooks.deliveries import deliveries

SECRET = "maple-lantern-42"
Path = tuple[str | int, ...]

HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, -1, 0, 10**30, 1e308, -0.0]),
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            "-",
            "--upload-pack=x",
            "ext::sh -c x",
            "https://u:p@h/r.git",
            "refs/heads/-x",
            "refs/heads/a..b",
            "refs/tags/" + "x" * 300,
            "\x00",
            "\ud800",
            "0" * 40,
            "A" * 40,
            "f" * 64,
            "a" * 5000,
            "/retest",
            "/ok-to-test\n/cancel",
            "[skip ci]",
            "9999-12-31T23:59:59Z",
            "0001-01-01T00:00:00+14:00",
        ]
    ),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


class CheckingInbox:
    """An inbox that stores deliveries, checking that each could be written and read."""

    def __init__(self) -> None:
        self.lookup_added = asyncio.Event()
        self.stored: list[NewDelivery] = []

    async def keep(self, delivery: NewDelivery) -> KeepResult:
        orjson.dumps(delivery.headers).decode()
        for text in (delivery.source_name, delivery.reason, delivery.detail, delivery.repo_full_name or ""):
            text.encode()
        if delivery.request is not None:
            JobRequestV1.decode(delivery.request)
        if delivery.lookup is not None:
            assert decode_lacking(delivery.lookup).repo_full_name == delivery.repo_full_name
        self.stored.append(delivery)
        return new(delivery)

    async def keep_all(self, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult | Exception]:
        return [await self.keep(delivery) for delivery in deliveries]

    async def backlog(self) -> int:
        return 0


@cache
def documents() -> list[tuple[Source, str, Any]]:
    """Forge, event name and payload of our deliveries, and of recorded ones if present."""
    from_fast_path = [
        (one.origin, one.source.forge.event_name(one.headers), one.body)
        for one in deliveries().values()
        if not one.is_form
    ]
    from_uvicorn = [
        (Source(one.meta["forge"]), one.source.forge.event_name(one.headers("headers")), one.body)
        for one in recorded().values()
        if "payload=" not in one.body[:8].decode("latin-1")
    ]
    return [
        (origin, event or "", json.loads(body)) for origin, event, body in (*from_fast_path, *from_uvicorn)
    ]


def paths_in(document: Any, here: Path = ()) -> Iterator[Path]:
    """The paths of all values in a document, at every depth."""
    hook_owners = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in hook_owners:
        yield (*here, key)
        if isinstance(value, dict | list):
            yield from paths_in(value, (*here, key))


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Source, str, bytes]:
    """A delivery with one to three values replaced, removed or moved."""
    origin, event, original = draw(st.sampled_from(documents()))
    document = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 3))):
        hook_owners = list(paths_in(document))
        if not hook_owners:
            break
        *way, last = draw(st.sampled_from(hook_owners))
        inside = document
        for key in way:
            inside = inside[key]
        match draw(st.sampled_from(["replace", "remove", "copy"])):
            case "remove":
                del inside[last]
            case "copy":
                found = document
                for key in draw(st.sampled_from(hook_owners)):
                    found = found[key]
                inside[last] = json.loads(json.dumps(found))
            case _:
                inside[last] = draw(HOSTILE)
    other = draw(st.sampled_from([event, event, event, "push", "issue_comment", "System Hook", "check_run"]))
    return origin, other, json.dumps(document).encode()


def answered(origin: Source, event: str, body: bytes, inbox: CheckingInbox) -> tuple[int, dict[str, Any]]:
    """Status and content of the answer to a genuine delivery."""
    url = "https://forge.example"
    source = WebhookSource(name="acme", forge=FORGES[origin], secrets=(SECRET,), url=url, token="t")
    app = create_app(
        AppParts(
            inbox=inbox,
            sources={"acme": source},
            metrics=Metrics(),
            broker_health=lambda: BrokerHealth(connected=True),
        )
    )
    headers = sign(origin, SECRET, event=event, body=body, delivery_id="d-1", now=0)
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    sent: list[Any] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/webhooks/acme", "headers": raw}
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]  # an ASGI application
    return sent[0]["status"], orjson.loads(sent[1]["body"])


@given(mutated())
def test_only_our_own_answers_and_never_a_500(case: tuple[Source, str, bytes]) -> None:
    inbox = CheckingInbox()
    status, content = answered(*case, inbox)
    assert status in {200, 202, 400}, content
    if status == 400:
        assert content["reason"] == "malformed"
        assert content["error"]
        assert inbox.stored == []
    else:
        (delivery,) = inbox.stored
        assert (status == 202) is (delivery.request_id is not None)
        assert (delivery.request is None) or (delivery.lookup is None)


@pytest.mark.parametrize("origin", sorted(FORGES))
def test_unchanged_they_are_all_taken(origin: Source) -> None:
    for forge, event, document in documents():
        if forge is origin:
            status, content = answered(forge, event, json.dumps(document).encode(), CheckingInbox())
            assert status in {200, 202}, content
