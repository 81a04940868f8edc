"""`solstice up --broker URL` on each broker, on none, and on a wrong one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology
from tests.brokers import broker_url, pytest_generate_tests
from tests.polling import wait_until
from tests.servers.ports import free_ports
from tests.servers.solstice_up import clean_environment, repository, solstice_up

__all__ = ["broker_url", "pytest_generate_tests"]

TRANSPORTS = {"sqlite": "embedded", "redis": "redis", "nats": "nats", "amqp": "rabbitmq"}
WORKFLOW = 'job "hello" { step "say" run="echo hello over $SOLSTICE_SOURCE"; }'


@pytest.mark.timeout(240)  # it may have to start a RabbitMQ first
def test_job_runs_over_the_broker_that_up_was_given(broker_url: str, tmp_path: Path) -> None:
    project = repository(tmp_path / "anvil", {".solstice/workflow.kdl": WORKFLOW})
    with solstice_up(tmp_path / "state", "--broker", broker_url) as up:
        ready = json.loads(up.ready_line)
        assert ready["waits_for_broker"] is None
        assert ready["broker"].partition(":")[0] == broker_url.partition(":")[0]
        followed = up.solstice(
            *("enqueue", "--amqp-url", broker_url, "--repo-url", project.folder),
            *("--commit-sha", project.head, "--follow"),
        )
        assert "hello over manual\n" in followed.stdout
        (run,) = up.json("runs")["runs"]
        assert run["state"] == "succeeded"
        transport = httpx2.get(f"{up.page}/healthz", trust_env=False).json()["broker"]
        shown = httpx2.get(f"{up.page}/metrics", trust_env=False).text
        assert transport == TRANSPORTS[broker_url.partition(":")[0]]
        series = re.findall(
            r'^solstice_queue_(\w+){queue="([^"]+)",transport="([^"]+)"} [\d.]+$', shown, re.MULTILINE
        )
        queues = {queue.name for queue in full_topology(BrokerSettings()).queues}
        assert {(queue, name) for measure, queue, name in series if measure == "depth"} == {
            (queue, transport) for queue in queues
        }
        assert {queue for _, queue, _ in series} == queues, "no more series than queues, whatever runs"


async def test_in_memory_a_push_is_built_and_nothing_of_it_is_written(tmp_path: Path) -> None:
    project = repository(tmp_path / "anvil", {".solstice/workflow.kdl": WORKFLOW})
    in_memory = [word for flag in ("--broker", "--store", "--inbox") for word in (flag, "memory:")]
    with solstice_up(tmp_path / "state", *in_memory) as up:
        up.solstice("webhook", "send", "--repo-url", project.folder, f"{up.webhooks}/forgejo")
        await wait_until(lambda: [run["state"] for run in up.api("/runs")["runs"]] == ["succeeded"])
        (run,) = up.api("/runs")["runs"]
        assert "hello over forgejo" in up.solstice("logs", run["run_id"]).stdout
        notices = [
            httpx2.get(f"{url}/readyz", trust_env=False).raise_for_status().json()["notices"]
            for url in (up.page, up.webhooks.removesuffix("/webhooks"))
        ]
        assert [{name for name, notice in each.items() if "memory" in notice} for each in notices] == [
            {"store", "broker"},
            {"inbox", "broker"},
        ]
        refused = up.solstice("enqueue", "--repo-url", project.folder, check=2).stderr
        assert f"'solstice up' (process {up.process.pid}) has its broker in its own memory" in refused
        assert up.api("/runs")["runs"] == [run], "nothing was asked for"
        own = {entry.name for entry in up.home.iterdir()} - {"up.log"}  # that of the test
    assert own == {"up.lock", "up.json", "webhook-secrets.json", "workspaces"}
    with solstice_up(tmp_path / "state", *in_memory) as up:
        assert up.api("/runs")["runs"] == []


@pytest.mark.parametrize("scheme", ["amqp", "redis", "nats"])
def test_broker_that_is_not_there_is_named_and_waited_for(scheme: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with solstice_up(tmp_path / "state", "--broker", f"{scheme}://otter:planted@127.0.0.1:{port}") as up:
        ready = json.loads(up.ready_line)
    assert ready["broker"] == f"{scheme}://otter@127.0.0.1:{port}"
    assert "refused" in ready["waits_for_broker"] or "Connect call failed" in ready["waits_for_broker"]
    assert "planted" not in up.ready_line


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("kafka://127.0.0.1", "must start with amqp:// or amqps:// for RabbitMQ, redis://"),
        ("amqp://otter:planted@", "must look like amqp://user:password@host:5672/%2f"),
        ("redis://otter:planted@127.0.0.1/solstice", "is no database of Redis"),
        ("nats://otter:planted@127.0.0.1/solstice", "must look like nats://user:password@host:4222"),
    ],
    ids=["scheme", "rabbitmq", "redis", "nats"],
)
def test_wrong_url_ends_up_with_2_and_what_to_write(url: str, message: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "solstice_cli",
            "up",
            "--forge-port",
            "0",
            "--orchestrator-port",
            "0",
            "--broker",
            url,
        ],
        env=clean_environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: AMQP_URL: ")
    assert message in done.stderr.splitlines()[-1]
    assert "planted" not in done.stdout + done.stderr
