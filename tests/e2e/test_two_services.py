"""forge-integration, orchestrator and `solstice` on each broker, as the README describes."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from solstice_common.broker import open_broker
from solstice_common.messages import JobStatusV1
from solstice_common.topology import STATUSES
from tests.brokers import broker_url, pytest_generate_tests
from tests.servers.forks import run_command
from tests.servers.ports import free_ports
from tests.servers.solstice_up import clean_environment, repository
from tests.traffic import drain

__all__ = ["broker_url", "pytest_generate_tests"]

WORKFLOW = 'job "hello" { step "say" run="echo hello from $SOLSTICE_SOURCE"; }'
READY_SECONDS = 60.0


@contextmanager
def service(
    module: str, *arguments: str, environment: dict[str, str], ready: str, log: Path
) -> Iterator[None]:
    """Start a service and wait for `/readyz`; leaving stops it and expects exit code 0."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {module} import main; main()", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    with process:
        try:
            until = time.monotonic() + READY_SECONDS
            while not _answers(ready):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.05)
            yield
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
        finally:
            if process.poll() is None:
                process.kill()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, trust_env=False).is_success
    except httpx2.HTTPError:
        return False


def solstice(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    done = run_command("solstice", *arguments, env=environment)
    assert done.returncode == 0, done.stderr
    return done


async def published_statuses(broker_url: str) -> list[JobStatusV1]:
    """Take all statuses that wait for forge-integration."""
    async with open_broker(broker_url, name="test") as broker:
        await broker.ready(READY_SECONDS)
        depth = await broker.depth(STATUSES.queue)
        assert depth is not None
        deliveries = await drain(broker, STATUSES.queue, depth.ready)
    return [JobStatusV1.decode(message.body) for message in deliveries]


@pytest.mark.timeout(240)  # it may have to start a RabbitMQ first
def test_push_is_built_and_reported(broker_url: str, tmp_path: Path) -> None:
    project = repository(tmp_path / "anvil", {".solstice/workflow.kdl": WORKFLOW})
    forge_port, orchestrator_port = map(str, free_ports(2))
    environment = {
        **clean_environment(tmp_path / "state"),
        "AMQP_URL": broker_url,
        "FORGE_PORT": forge_port,
        "ORCHESTRATOR_PORT": orchestrator_port,
        "SOLSTICE_URL": f"http://127.0.0.1:{orchestrator_port}",
        "FORGEJO_WEBHOOK_SECRET": "one-that-we-chose",
        "GIT_PROTOCOLS": "file",
    }
    solstice(environment, "topology", "declare")
    with ExitStack() as stack:
        for module, command, port in (
            ("solstice_forge.cli", "serve", forge_port),
            ("solstice_orchestrator.cli", "run", orchestrator_port),
        ):
            ready = f"http://127.0.0.1:{port}/readyz"
            log = tmp_path / f"{module}.log"
            stack.enter_context(service(module, command, environment=environment, ready=ready, log=log))
        sent = solstice(
            environment,
            *("webhook", "send", "--secret", "one-that-we-chose", "--repo-url", str(project.folder)),
            *("--json", f"http://127.0.0.1:{forge_port}"),
        )
        (request_id,) = json.loads(sent.stdout)["answer"]["request_ids"]
        followed = solstice(
            environment,
            *("enqueue", "--repo-url", str(project.folder), "--commit-sha", project.head, "--follow"),
        )
        assert "hello from manual\n" in followed.stdout
        runs = json.loads(solstice(environment, "runs", "--json").stdout)["runs"]
        (run,) = [run for run in runs if run["request_id"] == request_id]
        solstice(environment, "logs", "--follow", run["run_id"])
    reported = asyncio.run(published_statuses(broker_url))
    assert [status.state for status in reported if status.run_id == run["run_id"] and not status.job_id][
        -1
    ] == "succeeded"
