"""One trace from a webhook to the status at the forge, also after kills.

SOLSTICE_TRACED_RUNS=1000 gives the test of many runs so many; by default it has few, to save time.
"""

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from solstice_common.messages import Source
from solstice_common.tracing.spans import SpanType
from tests.e2e.webhook_calls import push, secrets
from tests.polling import LONG_WAIT_SECONDS, wait_until_true
from tests.repositories import Repository
from tests.servers.forge_api import forge_api
from tests.servers.forge_integration import forge_integration
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.otlp_collector import Behaviour, OtlpCollector, ReceivedSpan, otlp_collector
from tests.servers.postgresql import ScratchDatabase
from tests.servers.rabbitmq import DEFAULT, RabbitMQServer
from tests.servers.service_process import ServiceProcess, base_environment, service_process
from tests.span_table import type_of, undeclared

SECRET: Final = "a-secret-of-the-collector"
RUNS: Final = int(os.environ.get("SOLSTICE_TRACED_RUNS", "24"))
WORKFLOW: Final = 'job "build" { step "show" run="echo context $TRACEPARENT"; }'
ONE_TRACE: Final = {
    SpanType.WEBHOOK: None,
    SpanType.PUBLISH: SpanType.WEBHOOK,
    SpanType.PROCESS: SpanType.PUBLISH,
    SpanType.RUN: SpanType.PROCESS,
    SpanType.JOB: SpanType.RUN,
    SpanType.WAIT: SpanType.JOB,
    SpanType.ATTEMPT: SpanType.JOB,
    SpanType.STEP: SpanType.ATTEMPT,
    SpanType.STATUS: SpanType.RUN,
}
"""The parent of each span."""


def traced(collector: OtlpCollector, **settings: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRET}",
        **settings,
    }


def kind_of(span: ReceivedSpan) -> SpanType:
    return type_of(span.name, span.kind)


def check(collector: OtlpCollector) -> None:
    """Every span is declared, has its parent, and is the same whenever it comes."""
    assert collector.orphans() == []
    assert collector.repeated() == {}
    by_id = {span.span_id: span for span in collector.spans}
    for span in collector.spans:
        kind = kind_of(span)
        assert not undeclared(kind, span.attributes), span
        parent = ONE_TRACE[kind]
        assert (kind_of(by_id[span.parent_id]) if span.parent_id else None) == parent, span
        assert span.service == kind.value.service
        assert span.start <= span.end
    assert not [body for body in collector.bodies if SECRET.encode() in body]


async def until(what: str, condition: Callable[[], object]) -> None:
    """Wait for work of several processes."""

    async def holds() -> bool:
        return bool(condition())

    await wait_until_true(what, holds)


def ended_runs(collector: OtlpCollector) -> int:
    return sum(kind_of(span) is SpanType.RUN for span in collector.spans)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Broker and databases of a deployment."""

    settings: Mapping[str, str]
    broker: str


@pytest.fixture(params=["embedded", "servers"])
def deployment(
    request: pytest.FixtureRequest, rabbitmq_servers: Callable[[str], RabbitMQServer]
) -> Iterator[Deployment]:
    """The embedded broker and SQLite files, or RabbitMQ and PostgreSQL."""
    if request.param == "embedded":
        yield Deployment(settings={}, broker="embedded")
        return
    database: ScratchDatabase = request.getfixturevalue("postgresql_database")
    with rabbitmq_servers(DEFAULT).vhost() as vhost:
        settings = {"AMQP_URL": vhost.url, "DATABASE_URL": database.url, "FORGE_INBOX_URL": database.url}
        yield Deployment(settings=settings, broker="rabbitmq")


@pytest.mark.timeout(600)
async def test_one_trace_leads_from_the_webhook_to_the_status(deployment: Deployment, tmp_path: Path) -> None:
    project = Repository(tmp_path / "anvil")
    commit = project.commit({".solstice/workflow.kdl": WORKFLOW})
    files = SharedFiles(directory=tmp_path)
    async with forge_api(Source.FORGEJO) as forge:
        config = tmp_path / "sources.toml"
        config.write_text(
            f'[sources.forgejo]\nforge = "forgejo"\nurl = "{forge.url}"\ntoken = "plain:{forge.token}"\n'
            'secrets = ["env:FORGEJO_WEBHOOK_SECRET"]\n'
        )
        with otlp_collector() as collector, ExitStack() as stack:
            settings = traced(collector, **deployment.settings)
            receiving = await asyncio.to_thread(
                stack.enter_context,
                forge_integration(files, FORGE_CONFIG=str(config), **secrets(), **settings),
            )
            building = await asyncio.to_thread(
                stack.enter_context,
                orchestrator(files, EXECUTOR="process", PUBLIC_URL="https://ci.example", **settings),
            )
            call = push(Source.FORGEJO, project.url, commit, now=time.time())
            async with httpx2.AsyncClient(trust_env=False) as client:
                answer = await client.post(
                    f"{receiving.url}/webhooks/forgejo", content=call.body, headers=dict(call.headers)
                )
                assert answer.status_code == 202, answer.text
                final = {"solstice": "success", "solstice/build": "success"}
                await until("the statuses at the forge", partial(_shows, forge, commit, final))
                await until(
                    "every span",
                    lambda: (
                        {kind_of(span) for span in collector.spans} == set(SpanType)
                        and len(collector.named("report status")) >= 2
                    ),
                )
                jobs = (await client.get(f"{building.url}/api/v1/jobs")).json()["jobs"]
                log = (await client.get(f"{building.url}/api/v1/jobs/{jobs[0]['job_id']}/log")).text
            check(collector)
            assert len({span.trace_id for span in collector.spans}) == 1
            (attempt,) = collector.named("attempt")
            context = re.search(r"context (00-[0-9a-f-]+)", log)
            assert context is not None, log
            assert context[1] == f"00-{attempt.trace_id}-{attempt.span_id}-01"
            (process,) = (span for span in collector.spans if kind_of(span) is SpanType.PROCESS)
            assert process.attributes["messaging.system"] == deployment.broker
            (job,) = (span for span in collector.spans if kind_of(span) is SpanType.JOB)
            assert (
                job.attributes["cicd.pipeline.task.run.url.full"]
                == f"https://ci.example/jobs/{jobs[0]['job_id']}"
            )
            assert {headers["authorization"] for headers in collector.headers} == {f"Bearer {SECRET}"}


def _shows(forge: Any, commit: str, expected: Mapping[str, str]) -> bool:
    return {key[2]: shown["state"] for key, shown in forge.shown.items() if key[1] == commit} == expected


async def request_builds(url: str, project: Repository, commit: str, count: int) -> None:
    job = {"repo_url": project.url, "commit_sha": commit}
    async with httpx2.AsyncClient(trust_env=False, timeout=LONG_WAIT_SECONDS) as client:
        for _ in range(count):
            answer = await client.post(f"{url}/api/v1/jobs", json=job)
            assert answer.status_code == 202, answer.text


@pytest.mark.timeout(600)
async def test_no_span_lacks_its_parent_when_an_orchestrator_and_the_collector_die(tmp_path: Path) -> None:
    project = Repository(tmp_path / "anvil")
    commit = project.commit({".solstice/workflow.kdl": 'job "a" { step "s" run="sleep 1"; }'})
    files = SharedFiles(directory=tmp_path)
    with otlp_collector() as collector, ExitStack() as stack:
        settings = traced(collector, EXECUTOR="scripted")
        receiving = await asyncio.to_thread(
            stack.enter_context, forge_integration(files, **secrets(), **settings)
        )
        collector.behaviour = Behaviour.UNAVAILABLE
        with orchestrator(files, **settings, CAPACITY_MAP="linux=2") as first:
            await request_builds(receiving.url, project, commit, 8)
            # The third began when the first had ended, so at least one runs now and one is over.
            await until(
                "three claims", lambda: sum(each["event"] == "job.claimed" for each in first.events) >= 3
            )
            await asyncio.to_thread(first.kill)
        await asyncio.to_thread(receiving.logged, "traces.paused")
        await asyncio.to_thread(receiving.kill)
        collector.behaviour = Behaviour.TAKE
        await asyncio.to_thread(stack.enter_context, forge_integration(files, **secrets(), **settings))
        await asyncio.to_thread(stack.enter_context, orchestrator(files, **settings))
        await until("eight traces", lambda: ended_runs(collector) == 8 and not collector.orphans())
        check(collector)
        errors = Counter(str(span.attributes.get("error.type")) for span in collector.named("attempt"))
        assert errors["None"] == 8
        assert set(errors) <= {"None", "lease_expired", "agent_lost"}
        assert len(errors) > 1


@pytest.mark.timeout(1200)  # a thousand runs take minutes; by default there are few
async def test_many_runs_leave_no_span_without_its_parent(tmp_path: Path) -> None:
    project = Repository(tmp_path / "anvil")
    commit = project.commit(
        {
            ".solstice/workflow.kdl": 'job "a" { step "s" run="true"; }\njob "b" { needs "a"; step "s" run="exit 1"; }'
        }
    )
    files = SharedFiles(directory=tmp_path)
    with otlp_collector() as collector, ExitStack() as stack:
        settings = traced(collector, EXECUTOR="scripted", CAPACITY_MAP="linux=16")
        receiving = await asyncio.to_thread(
            stack.enter_context,
            forge_integration(files, FORGE_API_PER_MINUTE="1000000", **secrets(), **settings),
        )
        await asyncio.to_thread(stack.enter_context, orchestrator(files, **settings))
        await request_builds(receiving.url, project, commit, RUNS)

        await until(f"{RUNS} traced runs", lambda: ended_runs(collector) == RUNS and not collector.orphans())
        check(collector)
        assert Counter(kind_of(span) for span in collector.spans) == {
            SpanType.WEBHOOK: RUNS,
            SpanType.PUBLISH: RUNS,
            SpanType.PROCESS: RUNS,
            SpanType.RUN: RUNS,
            SpanType.JOB: 2 * RUNS,
            SpanType.WAIT: 2 * RUNS,
            SpanType.ATTEMPT: 2 * RUNS,
            SpanType.STEP: 2 * RUNS,
        }


LISTED: Final = (
    "import atexit, json, sys; atexit.register(lambda: print(json.dumps({'event': 'ended', 'loaded':"
    " [name for name in sys.modules if name.split('.')[0] in ('opentelemetry', 'google')]}), file=sys.stderr)); "
)


@pytest.mark.timeout(600)
async def test_without_an_endpoint_nothing_of_opentelemetry_is_loaded(tmp_path: Path) -> None:
    project = Repository(tmp_path / "anvil")
    commit = project.commit({".solstice/workflow.kdl": 'job "a" { step "s" run="true"; }'})
    environment = {
        **base_environment(),
        "SOLSTICE_HOME": str(tmp_path / "home"),
        "FORGE_PORT": "0",
        "ORCHESTRATOR_PORT": "0",
        "EXECUTOR": "scripted",
    }
    start = f"{LISTED}from solstice_cli.main import main; main()"
    with service_process(
        ServiceProcess, start, "up", environment=environment, started="forge.started"
    ) as running:
        address = running.logged("forge.started")
        await request_builds(f"http://{address['host']}:{address['port']}", project, commit, 1)
        await asyncio.to_thread(running.logged, "attempt.finished")
        running.terminate()
        assert await asyncio.to_thread(running.ended) == 0
        assert running.logged("ended")["loaded"] == []
