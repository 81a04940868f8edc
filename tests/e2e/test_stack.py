"""The stack and its variations run in real containers, and lose nothing of a load.

They take a quarter of an hour and 4 GB of disk, so SOLSTICE_TEST_STACK=1 asks for them.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from solstice_cli.demo.local_podman import remove_store
from tests.servers.podman import PodmanStore, networks_can_be_made, podman_is_there
from tests.servers.ports import free_ports
from tests.servers.prometheus import alert_rules
from tests.servers.server import TLS
from tests.servers.stack_images import IMAGES, make_base, make_servers, make_services, stack_store

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TAG = "test"
OURS = ("forge-integration", "orchestrator")
PORTS = (
    "STACK_WEBHOOKS_PORT",
    "STACK_PAGES_PORT",
    "STACK_MANAGEMENT_PORT",
    "STACK_PROMETHEUS_PORT",
    "STACK_GRAFANA_PORT",
)
READY_SECONDS = 300
REQUESTS = 40
GRAFANA = os.environ.get("SOLSTICE_TEST_GRAFANA_IMAGE", "")
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.environ.get("SOLSTICE_TEST_STACK") != "1",
        # Minutes of both processors, for files that change rarely.
        reason="not asked for: SOLSTICE_TEST_STACK=1 starts the stack in containers",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """A broker of the stack, and the variables that choose it."""

    brokers: tuple[str, ...] = ("rabbitmq",)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def targets(self) -> dict[str, int]:
        """How many instances Prometheus asks for each of its jobs."""
        nodes = sum(name.startswith("rabbitmq") for name in self.brokers)
        return {f"solstice-{each}": 1 for each in OURS} | ({"rabbitmq": nodes} if nodes else {})


NODES: Final = ("rabbitmq-1", "rabbitmq-2", "rabbitmq-3")
VARIATIONS: Final = {
    "rabbitmq": Variation(),
    "rabbitmq-cluster": Variation(brokers=NODES, settings={"STACK_BROKER": "rabbitmq-cluster"}),
    "redis": Variation(brokers=("redis",), settings={"STACK_BROKER": "redis"}),
    "nats": Variation(brokers=("nats",), settings={"STACK_BROKER": "nats"}),
    "tls": Variation(settings={"STACK_TLS": "1"}),
}


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodmanStore]:
    """A podman with the images of all variations."""
    assert podman_is_there()
    assert networks_can_be_made()
    store = stack_store(tmp_path_factory.mktemp("podman"))
    try:
        make_base(store)
        make_services(store, TAG)
        make_servers(store)
        yield store
    finally:
        store.run("rm", "-f", "-t", "0", "-a")
        remove_store(store.folder)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A copy of `compose/`, whose secrets are its own."""

    folder: Path
    podman: PodmanStore
    settings: Mapping[str, str]

    def just(self, *arguments: str) -> str:
        """Run what `./just stack` runs."""
        done = subprocess.run(
            [self.folder / "stack" / "run", *arguments],
            env={
                **os.environ,
                **self.podman.environment,
                "PATH": f"{BIN}:{os.environ['PATH']}",
                **self.settings,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def secret(self, name: str) -> str:
        return (self.folder / "stack" / "secrets" / name).read_text().strip()

    def container(self, service: str) -> str:
        label = f"label=com.docker.compose.service={service}"
        (name,) = self.podman.run("ps", "--filter", label, "--format", "{{.Names}}").split()
        return name

    def inspected(self, service: str) -> Any:
        return json.loads(self.podman.run("inspect", self.container(service)))[0]

    def run_in(self, service: str, *command: str) -> str:
        return self.podman.run("exec", self.container(service), *command)

    def get(self, port: str, path: str, **headers: str) -> httpx2.Response:
        return httpx2.get(
            f"http://127.0.0.1:{self.settings[port]}{path}", headers=headers, trust_env=False, verify=TLS
        )

    def prometheus(self, path: str) -> Any:
        return self.get("STACK_PROMETHEUS_PORT", f"/api/v1/{path}").raise_for_status().json()["data"]

    def is_ready(self, port: str, path: str = "/readyz") -> bool:
        try:
            return self.get(port, path).is_success
        except httpx2.TransportError:
            return False

    def is_healthy(self, service: str) -> bool:
        """Whether the container's own check says so."""
        try:
            self.podman.run("healthcheck", "run", self.container(service))
        except subprocess.CalledProcessError:
            return False
        return True

    def load(self) -> str:
        """Send a load, and return the report.

        It exits with 0 only if nothing was lost, repeated, unfinished or wrong.
        """
        # The variable by which `solstice` is let in is not one of the container's.
        token = f"SOLSTICE_TOKEN={self.secret('token')}"
        words = ("solstice", "load", "-n", str(REQUESTS))
        return self.podman.run("exec", "--env", token, self.container("orchestrator"), *words)


@contextmanager
def stack_of(podman: PodmanStore, folder: Path, variation: Variation) -> Iterator[Stack]:
    """Describe a stack that is not up yet; nothing of it is left."""
    shutil.copytree(ROOT / "compose", folder / "compose", ignore=shutil.ignore_patterns("secrets"))
    settings = {
        "STACK_ENGINE": "podman",
        "STACK_TAG": TAG,
        "STACK_GIT_PROTOCOLS": "file",
        **IMAGES,
        **dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True)),
        **variation.settings,
    }
    made = Stack(folder=folder / "compose", podman=podman, settings=settings)
    before = networks_of(podman)
    try:
        yield made
    finally:
        made.just("down", "--volumes", "--timeout", "5")
        left = (podman.containers(), podman.volumes(), networks_of(podman))
        # Not for the next variation, which would find it.
        podman.run("rm", "--force", "--time=0", "--all")
        podman.run("volume", "rm", "--force", "--all")
    assert left == ([], [], before)


def networks_of(podman: PodmanStore) -> list[str]:
    return podman.run("network", "ls", "--quiet").split()


def await_that(stack: Stack, what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        assert time.monotonic() < deadline, (what, stack.podman.run("ps", "--all"))
        time.sleep(0.5)


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_load_ends_green(podman: PodmanStore, tmp_path: Path, name: str) -> None:
    variation = VARIATIONS[name]
    with stack_of(podman, tmp_path, variation) as stack:
        services = (*OURS, "postgresql", "prometheus", *variation.brokers)
        stack.just("up", *services)
        for port in PORTS[:2]:
            await_that(stack, port, partial(stack.is_ready, port))
        hold_to_their_rights(stack)
        assert f"{REQUESTS} of {REQUESTS}" in stack.load()
        for service in services:
            await_that(stack, f"{service} is healthy", partial(stack.is_healthy, service))
        hold_prometheus_to(stack, variation.targets)
        if name == "rabbitmq-cluster":
            hold_to_be_a_cluster(stack)
        if name == "tls":
            assert "port: 5672" not in stack.run_in("rabbitmq", "rabbitmq-diagnostics", "listeners")
        assert "orchestrator" in stack.just("status")
        assert "orchestrator.started" in stack.just("logs", "orchestrator")


def hold_to_their_rights(stack: Stack) -> None:
    """Compare the rights of our containers, and of callers, with the page."""
    bearer = f"Bearer {stack.secret('token')}"
    assert stack.get("STACK_PAGES_PORT", "/api/v1/runs").status_code == 401
    assert stack.get("STACK_PAGES_PORT", "/api/v1/runs", Authorization=bearer).is_success
    for service in OURS:
        described = stack.inspected(service)
        assert described["HostConfig"]["ReadonlyRootfs"]
        assert described["EffectiveCaps"] in (None, [])
        assert described["Config"]["User"] == "10001:10001"
        secrets = map(stack.secret, ("broker-password", "postgresql-password"))
        assert not any(secret in json.dumps(described) for secret in secrets)


def hold_prometheus_to(stack: Stack, targets: Mapping[str, int]) -> None:
    """Wait until Prometheus has asked every instance, and compare its rules with ours."""

    def asks_all() -> bool:
        active = stack.prometheus("targets")["activeTargets"]
        jobs = [each["labels"]["job"] for each in active]
        return Counter(jobs) == targets and {each["health"] for each in active} == {"up"}

    def counts_the_load() -> bool:
        found = stack.prometheus("query?query=sum(solstice_attempts_finished_total)")["result"]
        return bool(found) and float(found[0]["value"][1]) >= REQUESTS

    await_that(stack, f"Prometheus asks {targets}", asks_all)
    await_that(stack, "Prometheus counts the load", counts_the_load)
    rules = [rule for group in stack.prometheus("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in alert_rules()}
    assert all(rule["health"] in {"ok", "unknown"} for rule in rules)


def hold_to_be_a_cluster(stack: Stack) -> None:
    """Compare the nodes that run, and lose one of them."""
    status = json.loads(stack.run_in(NODES[0], "rabbitmqctl", "cluster_status", "--formatter", "json"))
    assert {*status["running_nodes"]} == {f"rabbit@{node}" for node in NODES}
    stack.podman.run("stop", "--time", "0", stack.container(NODES[1]))
    assert f"{REQUESTS} of {REQUESTS}" in stack.load()


@pytest.mark.skipif(
    not GRAFANA,
    # Neither Debian nor a package index that the tests use has Grafana, and there may be no registry of images.
    reason="not asked for: SOLSTICE_TEST_GRAFANA_IMAGE names an image of Grafana",
)
def test_grafana_has_the_dashboards(podman: PodmanStore, tmp_path: Path) -> None:
    variation = Variation(settings={"STACK_GRAFANA_IMAGE": GRAFANA})
    with stack_of(podman, tmp_path, variation) as stack:
        stack.just("up", "grafana", "prometheus")
        await_that(stack, "Grafana is healthy", partial(stack.is_healthy, "grafana"))
        name_and_password = ("admin", stack.secret("grafana-password"))
        url = f"http://127.0.0.1:{stack.settings['STACK_GRAFANA_PORT']}/api/search?type=dash-db"
        found = httpx2.get(url, auth=name_and_password, trust_env=False, verify=TLS).raise_for_status().json()
    declared = (ROOT / "compose/grafana/dashboards").iterdir()
    assert {each["title"] for each in found} == {json.loads(each.read_text())["title"] for each in declared}
