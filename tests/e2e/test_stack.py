"""The stack runs in real containers of podman, and loses nothing of a load.

They take some minutes and 3 GB of disk, so SOLSTICE_TEST_STACK=1 asks for them.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from solstice_cli.demo.local_podman import remove_store
from tests.servers.podman import PodmanStore, networks_can_be_made, podman_is_there
from tests.servers.ports import free_ports
from tests.servers.server import TLS
from tests.servers.stack_images import (
    POSTGRESQL,
    RABBITMQ,
    make_base,
    make_servers,
    make_services,
    stack_store,
)

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TAG = "test"
OURS = ("forge-integration", "orchestrator")
PORTS = ("STACK_WEBHOOKS_PORT", "STACK_PAGES_PORT", "STACK_MANAGEMENT_PORT")
READY_SECONDS = 300
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.environ.get("SOLSTICE_TEST_STACK") != "1",
        # Minutes of both processors, for files that change rarely.
        reason="not asked for: SOLSTICE_TEST_STACK=1 starts the stack in containers",
    ),
]


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodmanStore]:
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
    settings: dict[str, str]

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

    def container(self, service: str) -> str:
        label = f"label=com.docker.compose.service={service}"
        (name,) = self.podman.run("ps", "--filter", label, "--format", "{{.Names}}").split()
        return name

    def get(self, port: str, path: str, **headers: str) -> httpx2.Response:
        return httpx2.get(
            f"http://127.0.0.1:{self.settings[port]}{path}", headers=headers, trust_env=False, verify=TLS
        )

    def await_ready(self, port: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                answer = self.get(port, "/readyz")
                if answer.is_success:
                    return
                seen = answer.text
            except httpx2.TransportError as error:
                seen = repr(error)
            assert time.monotonic() < deadline, (seen, self.podman.run("ps", "--all"))
            time.sleep(0.2)


@pytest.fixture
def stack(podman: PodmanStore, tmp_path: Path) -> Iterator[Stack]:
    shutil.copytree(ROOT / "compose", tmp_path / "compose", ignore=shutil.ignore_patterns("secrets"))
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    settings = {
        "STACK_ENGINE": "podman",
        "STACK_TAG": TAG,
        "STACK_RABBITMQ_IMAGE": RABBITMQ,
        "STACK_POSTGRESQL_IMAGE": POSTGRESQL,
        "STACK_GIT_PROTOCOLS": "file",
        **ports,
    }
    made = Stack(folder=tmp_path / "compose", podman=podman, settings=settings)
    try:
        yield made
    finally:
        made.just("down", "--volumes", "--timeout", "5")


def test_a_load_ends_green(stack: Stack) -> None:
    up = stack
    up.just("up", *OURS, "postgresql", "rabbitmq")
    for port in PORTS[:2]:
        up.await_ready(port)
    token = (up.folder / "stack/secrets/token").read_text().strip()
    assert up.get("STACK_PAGES_PORT", "/api/v1/runs").status_code == 401
    assert up.get("STACK_PAGES_PORT", "/api/v1/runs", Authorization=f"Bearer {token}").is_success
    assert up.get("STACK_WEBHOOKS_PORT", "/healthz").is_success

    for service in OURS:
        described: Any = json.loads(up.podman.run("inspect", up.container(service)))[0]
        assert described["HostConfig"]["ReadonlyRootfs"]
        assert described["EffectiveCaps"] in (None, [])
        assert described["Config"]["User"] == "10001:10001"
        up.podman.run("healthcheck", "run", up.container(service))
        secrets = (
            up.folder / "stack/secrets/broker-password",
            up.folder / "stack/secrets/postgresql-password",
        )
        assert not any(secret.read_text() in json.dumps(described) for secret in secrets)
    # The variable by which `solstice` is let in is not one of the container's.
    # It exits with 0 only if nothing was lost, repeated, unfinished or wrong.
    load = ("solstice", "load", "-n", "40")
    container = up.container("orchestrator")
    assert "40 of 40" in up.podman.run("exec", "--env", f"SOLSTICE_TOKEN={token}", container, *load)
    assert "orchestrator" in up.just("status")
    assert "orchestrator.started" in up.just("logs", "orchestrator")
