"""The HTTP API: real service, real inbox, real HTTP, and what arrives at the broker."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from solstice_common.broker import open_broker
from solstice_common.errors import ConfigurationError
from solstice_common.http.token_file import change
from solstice_common.http.tokens import TokenScope
from solstice_common.messages import JobRequestV1
from solstice_forge.api.jobs import MAX_JOB_BYTES
from solstice_forge.api.openapi import render
from solstice_forge.service import serve
from solstice_forge.settings import ForgeSettings
from tests.integration.forge.conftest import MakeSettings, Running
from tests.integration.forge.pushes import push, received
from tests.servers.postgresql import ScratchDatabase
from tests.servers.tokens import bearer, make_token

SHA = "5ca1ab1e" * 5
JOB_INPUT = {"repo_url": "https://forge.example/tide-club/almanac.git", "commit_sha": SHA}
NO_BROKER = "amqp://127.0.0.1:9/%2f"


@dataclass(frozen=True, kw_only=True)
class ForgeService:
    http: httpx2.AsyncClient
    settings: ForgeSettings
    asks: dict[str, str]
    reads: dict[str, str]

    async def ask(self, key: str | None = None, **more: object) -> httpx2.Response:
        headers = self.asks | ({} if key is None else {"Idempotency-Key": key})
        return await self.http.post("/api/v1/jobs", json=JOB_INPUT | more, headers=headers)

    async def read(self, path: str = "", **parameters: Any) -> httpx2.Response:
        return await self.http.get(f"/api/v1/deliveries{path}", params=parameters or None, headers=self.reads)

    async def arrived(self, count: int) -> list[JobRequestV1]:
        async with open_broker(self.settings.amqp_url, name="test") as broker:
            return await received(broker, self.settings, count)


@pytest.fixture
def settings(make_settings: MakeSettings) -> ForgeSettings:
    return make_settings()


@pytest.fixture
async def service(settings: ForgeSettings, running: Running) -> AsyncIterator[ForgeService]:
    asks = make_token(settings.solstice_tokens, "asker", TokenScope.ENQUEUE)
    reads = make_token(settings.solstice_tokens, "reader", TokenScope.READ)
    async with running(settings) as http:
        yield ForgeService(http=http, settings=settings, asks=bearer(asks), reads=bearer(reads))


class TestEnqueue:
    async def test_a_requested_job_is_stored_published_and_found(self, service: ForgeService) -> None:
        answer = await service.ask(ref="refs/heads/main", repo_full_name="tide-club/almanac")
        assert answer.status_code == 202
        reported = answer.json()
        (request,) = await service.arrived(1)
        assert (request.request_id, request.commit_sha, request.ref) == (
            reported["request_id"],
            SHA,
            "refs/heads/main",
        )
        assert (request.source, request.sender, request.trusted) == ("manual", "asker", True)
        found = await service.http.get(answer.headers["location"], headers=service.reads)
        assert found.status_code == 200
        delivery = found.json()
        assert (delivery["source"], delivery["decision"], delivery["reason"]) == ("api", "accepted", "manual")
        assert delivery["request_ids"] == [reported["request_id"]]
        assert delivery["request"]["repo_full_name"] == delivery["repository"] == "tide-club/almanac"

    async def test_a_repository_has_the_name_that_a_webhook_gives_it(self, service: ForgeService) -> None:
        answer = await service.ask()
        (request,) = await service.arrived(1)
        assert request.repo_full_name == "tide-club/almanac"
        found = await service.http.get(answer.headers["location"], headers=service.reads)
        assert found.json()["repository"] == "tide-club/almanac"

    async def test_same_key_and_body_is_the_same_answer_and_one_run(self, service: ForgeService) -> None:
        key = str(uuid.uuid4())
        answers = await asyncio.gather(*(service.ask(key if one % 2 else f'"{key}"') for one in range(20)))
        assert {answer.status_code for answer in answers} == {202}
        assert len({(answer.content, answer.headers["location"]) for answer in answers}) == 1
        other = await service.ask()
        requests = await service.arrived(2)
        assert [one.request_id for one in requests] == [
            answers[0].json()["request_id"],
            other.json()["request_id"],
        ]

    async def test_same_key_and_another_body_is_refused(self, service: ForgeService) -> None:
        first = await service.ask("k-1")
        answer = await service.ask("k-1", runs_on="linux")
        assert (answer.status_code, answer.json()["reason"]) == (422, "idempotency_key_reused")
        assert (await service.ask("k-1")).content == first.content
        counted = (await service.http.get("/metrics")).text
        for outcome in ("accepted", "duplicate", "idempotency_key_reused"):
            assert f'solstice_forge_api_jobs_total{{outcome="{outcome}"}} 1.0' in counted

    async def test_a_key_is_remembered_by_the_next_service(
        self, settings: ForgeSettings, running: Running
    ) -> None:
        asks = bearer(make_token(settings.solstice_tokens, "asker", TokenScope.ENQUEUE)) | {
            "Idempotency-Key": "k-1"
        }
        answers = []
        for body in (JOB_INPUT, JOB_INPUT, JOB_INPUT | {"runs_on": "linux"}):
            async with running(settings) as http:
                answers.append(await http.post("/api/v1/jobs", json=body, headers=asks))
        assert [answer.status_code for answer in answers] == [202, 202, 422]
        assert answers[0].content == answers[1].content

    async def test_two_replicas_agree_on_who_was_first(
        self, make_settings: MakeSettings, running: Running, postgresql_database: ScratchDatabase
    ) -> None:
        settings = make_settings(forge_inbox_url=postgresql_database.url, forge_api_per_minute=1000)
        asks = bearer(make_token(settings.solstice_tokens, "asker", TokenScope.ENQUEUE))
        bodies = (JOB_INPUT, JOB_INPUT | {"runs_on": "linux"})
        async with running(settings) as one, running(settings) as other:
            for key in map(str, range(5)):
                headers = asks | {"Idempotency-Key": key}
                answers = await asyncio.gather(
                    *(
                        http.post("/api/v1/jobs", json=body, headers=headers)
                        for http in (one, other, one, other)
                        for body in bodies
                    )
                )
                statuses = [{answer.status_code for answer in answers[place::2]} for place in (0, 1)]
                assert sorted(map(sorted, statuses)) == [[202], [422]]
                assert len({answer.content for answer in answers if answer.status_code == 202}) == 1

    async def test_keys_of_two_tokens_are_two_keys(self, service: ForgeService) -> None:
        other = bearer(make_token(service.settings.solstice_tokens, "other", TokenScope.ENQUEUE))
        first_answer = await service.ask("k-1")
        other_answer = await service.http.post(
            "/api/v1/jobs", json=JOB_INPUT | {"runs_on": "linux"}, headers=other | {"Idempotency-Key": "k-1"}
        )
        assert (first_answer.status_code, other_answer.status_code) == (202, 202)

    async def test_without_a_key_each_request_is_a_run(self, service: ForgeService) -> None:
        assert len({(await service.ask()).json()["request_id"] for _ in range(3)}) == 3

    @pytest.mark.parametrize(
        ("sent", "status", "reason"),
        [
            pytest.param({"json": {}}, 400, "malformed", id="no job"),
            pytest.param(
                {"content": b"{", "headers": {"Content-Type": "application/json"}},
                400,
                "malformed",
                id="no JSON",
            ),
            pytest.param({"data": JOB_INPUT}, 415, "unsupported_content_type", id="a form"),
            pytest.param({"content": b"{}"}, 415, "unsupported_content_type", id="no type"),
            pytest.param(
                {"json": JOB_INPUT | {"ref": "x" * MAX_JOB_BYTES}}, 413, "too_large", id="too large"
            ),
            pytest.param(
                {"json": JOB_INPUT, "headers": {"Idempotency-Key": "a b"}},
                400,
                "bad_idempotency_key",
                id="odd key",
            ),
        ],
    )
    async def test_an_invalid_cancel_changes_nothing(
        self, service: ForgeService, sent: dict[str, Any], status: int, reason: str
    ) -> None:
        headers = service.asks | sent.pop("headers", {})
        answer = await service.http.post("/api/v1/jobs", headers=headers, **sent)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason)
        assert (await service.read()).json()["deliveries"] == []

    async def test_other_methods_get_the_allowed_one(self, service: ForgeService) -> None:
        answer = await service.http.get("/api/v1/jobs", headers=service.reads)
        assert (answer.status_code, answer.json()["reason"], answer.headers["allow"]) == (
            405,
            "method_not_allowed",
            "POST",
        )


async def test_each_token_has_its_own_rate(make_settings: MakeSettings, running: Running) -> None:
    settings = make_settings(forge_api_per_minute=1)
    one, two = (
        bearer(make_token(settings.solstice_tokens, name, TokenScope.ENQUEUE)) for name in ("one", "two")
    )
    async with running(settings) as http:
        answers = [
            await http.post("/api/v1/jobs", json=JOB_INPUT, headers=headers) for headers in (one, one, two)
        ]
    assert [answer.status_code for answer in answers] == [202, 429, 202]
    assert answers[0].headers["ratelimit-policy"] == '"token";q=1;w=60'
    assert answers[0].headers["ratelimit"].startswith('"token";r=0;t=')
    assert answers[1].json()["reason"] == "too_many_requests"
    assert 1 <= int(answers[1].headers["retry-after"]) <= 60


async def test_past_the_threshold_jobs_are_shed_and_webhooks_taken(
    make_settings: MakeSettings, running: Running
) -> None:
    settings = make_settings(forge_api_backlog=2, amqp_url=NO_BROKER)
    async with running(settings) as http:
        job_answers = [await http.post("/api/v1/jobs", json=JOB_INPUT) for _ in range(3)]
        assert [answer.status_code for answer in job_answers] == [202, 202, 503]
        assert job_answers[2].json()["reason"] == "overloaded"
        assert int(job_answers[2].headers["retry-after"]) >= 1
        body, headers = push(1)
        assert (await http.post("/webhooks/forgejo", content=body, headers=headers)).status_code == 202


class TestDeliveries:
    async def test_the_newest_come_first_page_by_page(self, service: ForgeService) -> None:
        for number in range(5):
            body, headers = push(number)
            await service.http.post("/webhooks/forgejo", content=body, headers=headers)
        found: list[str] = []
        after: dict[str, Any] = {}
        while True:
            page = (await service.read(limit=2, **after)).json()
            found += [delivery["delivery_id"] for delivery in page["deliveries"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert found == [f"delivery-{number}" for number in reversed(range(5))]

    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            ({"source": "api"}, ["api"]),
            ({"source": "forgejo"}, ["forgejo", "forgejo"]),
            ({"decision": "duplicate"}, ["forgejo"]),
            ({"reason": "manual"}, ["api"]),
            ({"repository": "tide-club/almanac", "decision": "accepted"}, ["api", "forgejo"]),
            ({"repository": "nobody/nothing"}, []),
            ({"since": "2000-01-01T00:00:00Z"}, ["api", "forgejo", "forgejo"]),
            ({"since": "2999-01-01T00:00:00Z"}, []),
        ],
        ids=str,
    )
    async def test_filters_hold(
        self, service: ForgeService, filters: dict[str, str], found: list[str]
    ) -> None:
        body, headers = push(1)
        for _ in range(2):
            await service.http.post("/webhooks/forgejo", content=body, headers=headers)
        await service.ask()
        page = (await service.read(**filters)).json()
        assert [delivery["source"] for delivery in page["deliveries"]] == found

    async def test_one_is_found_by_number_and_by_the_senders_id(self, service: ForgeService) -> None:
        body, headers = push(1, delivery_id="a/b c?")
        for _ in range(2):
            await service.http.post("/webhooks/forgejo", content=body, headers=headers)
        by_id = (await service.read("/a%2Fb%20c%3F")).json()
        by_number = (await service.read(f"/{by_id['number']}")).json()
        # Meanwhile it may have been published.
        passing = {"published", "attempts", "last_failure"}
        assert {k: by_number[k] for k in by_number.keys() - passing} == {
            k: by_id[k] for k in by_id.keys() - passing
        }
        assert (by_id["source"], by_id["delivery_id"], by_id["decision"]) == ("forgejo", "a/b c?", "accepted")
        assert by_id["body_bytes"] == len(body)
        (copy,) = by_id["copies"]
        assert (copy["decision"], copy["repeats"]) == ("duplicate", by_id["number"])

    @pytest.mark.parametrize("name", ["nothing", "99", "9" * 40, "%00", "%ff", "x" * 300, "a/b"])
    async def test_what_is_not_there_is_not_found(self, service: ForgeService, name: str) -> None:
        answer = await service.read(f"/{name}")
        assert (answer.status_code, answer.json()["reason"]) == (404, "not_found")

    @pytest.mark.parametrize(
        "query",
        [
            "limit=0",
            "limit=201",
            "limit=x",
            "after=0",
            "after=x",
            "decision=maybe",
            "since=yesterday",
            "repo=a",
            "source=",
            "limit=1&limit=2",
            "source=%00",
        ],
    )
    async def test_odd_questions_are_refused(self, service: ForgeService, query: str) -> None:
        answer = await service.read(f"?{query}")
        assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_parameter")
        assert query.partition("=")[0] in answer.json()["error"]


class TestAccess:
    ROUTES = (("POST", "/api/v1/jobs", TokenScope.ENQUEUE), ("GET", "/api/v1/deliveries", TokenScope.READ))

    @pytest.mark.parametrize(
        ("method", "path", "needed"), [*ROUTES, ("GET", "/api/v1/deliveries/1", TokenScope.READ)]
    )
    async def test_each_route_needs_its_scope(
        self, service: ForgeService, method: str, path: str, needed: TokenScope
    ) -> None:
        anonymous = await service.http.request(method, path, json=JOB_INPUT)
        assert (anonymous.status_code, anonymous.json()["reason"]) == (401, "token_needed")
        assert anonymous.headers["www-authenticate"] == 'Bearer realm="solstice"'
        for scope in TokenScope:
            token = make_token(service.settings.solstice_tokens, f"only-{scope}", scope)
            answer = await service.http.request(method, path, json=JOB_INPUT, headers=bearer(token))
            assert (answer.status_code == 403) is (scope is not needed)
            if scope is not needed:
                assert f"lacks the scope '{needed}'" in answer.json()["error"]

    async def test_a_revoked_token_is_refused_at_once(self, service: ForgeService) -> None:
        assert (await service.ask()).status_code == 202
        change(
            service.settings.solstice_tokens, lambda tokens: [one for one in tokens if one.name != "asker"]
        )
        answer = await service.ask()
        assert (answer.status_code, answer.json()["reason"]) == (401, "unknown_token")

    async def test_an_expired_token_is_refused(self, service: ForgeService) -> None:
        old = make_token(service.settings.solstice_tokens, "old", TokenScope.READ, lifetime_seconds=-1)
        answer = await service.http.get("/api/v1/deliveries", headers=bearer(old))
        assert (answer.status_code, answer.json()["reason"]) == (401, "expired_token")

    @pytest.mark.parametrize(
        "headers",
        [
            pytest.param({"X-Forwarded-For": "203.0.113.7"}, id="through a proxy"),
            pytest.param({"Forwarded": "for=203.0.113.7"}, id="through a proxy that knows RFC 7239"),
            pytest.param({"Via": "1.1 front"}, id="through a proxy that says so"),
            pytest.param({"Host": "ci.example"}, id="under another name"),
            pytest.param({"Host": "127.0.0.1.rebound.example"}, id="under a name made to mislead"),
            pytest.param({"Origin": "https://evil.example"}, id="from a page in a browser"),
        ],
    )
    @pytest.mark.parametrize(("method", "path", "_needed"), ROUTES)
    async def test_without_tokens_only_programs_on_this_machine(
        self,
        settings: ForgeSettings,
        running: Running,
        headers: dict[str, str],
        method: str,
        path: str,
        _needed: TokenScope,
    ) -> None:
        async with running(settings) as http:
            assert (await http.request(method, path, json=JOB_INPUT)).status_code in {200, 202}
            answer = await http.request(method, path, json=JOB_INPUT, headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (401, "no_tokens_yet")

    async def test_without_tokens_http_1_0_is_taken_for_a_proxy(
        self, settings: ForgeSettings, running: Running
    ) -> None:
        async with running(settings) as http:
            reader, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
            writer.write(b"GET /api/v1/deliveries HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"401"
            writer.close()
            await writer.wait_closed()

    async def test_the_operator_may_open_it(self, make_settings: MakeSettings, running: Running) -> None:
        settings = make_settings(solstice_access="open")
        make_token(settings.solstice_tokens, "reader", TokenScope.READ)
        async with running(settings) as http:
            answer = await http.get("/api/v1/deliveries", headers={"X-Forwarded-For": "203.0.113.7"})
        assert answer.status_code == 200

    async def test_webhooks_need_no_token(self, service: ForgeService) -> None:
        body, headers = push(1)
        answer = await service.http.post("/webhooks/forgejo", content=body, headers=headers)
        assert answer.status_code == 202


async def test_the_document_is_public(service: ForgeService) -> None:
    answer = await service.http.get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.content == render()


async def test_it_does_not_start_with_tokens_it_cannot_read(settings: ForgeSettings) -> None:
    settings.solstice_tokens.write_text(json.dumps({"tokens": [{"name": "x"}]}))
    with pytest.raises(ConfigurationError, match=r"tokens\.json cannot be used"):
        await serve(settings, stop=asyncio.Event())


async def test_no_source_may_have_the_name_of_the_api(make_settings: MakeSettings, tmp_path: Path) -> None:
    config = tmp_path / "sources.toml"
    config.write_text(
        '[sources.api]\nforge = "forgejo"\nurl = "https://forge.example"\nsecrets = ["plain:heron-lantern-7"]\n'
    )
    with pytest.raises(ConfigurationError, match="the source name 'api' is taken"):
        await serve(make_settings(forge_config=str(config)), stop=asyncio.Event())
