"""A shell runs the commands that `topology users` prints; the users do their work alone.

Redis and NATS are those that `test_broker_rights` leaves out; there every command runs as the user of its role.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import pytest

from solstice_common.rights.roles import Role
from tests.broker_roles import RoleBroker, does_its_work_and_nothing_else, refusals
from tests.brokers import pytest_generate_tests
from tests.garbage import garbage_of_this_test
from tests.role_users import MARKS, NatsRoles, RabbitMQRoles, roles
from tests.servers.forks import run_command
from tests.servers.rabbitmq import DEFAULT, FLAVOURS, RabbitMQServer
from tests.servers.rabbitmq_node import PlacedRabbitMQ
from tests.servers.service_process import base_environment
from tests.servers.versions import NATS, REDIS

__all__ = ["garbage_of_this_test", "pytest_generate_tests", "roles"]

WITHOUT_BROKERS = ("embedded", REDIS, NATS, *FLAVOURS)
EVERY_VERSION = True
PRINTED: Final = "PASSWORD"
"""What stands in the place of a password."""
pytestmark = [*MARKS]


def printed(url: str, user: str, role: Role) -> str:
    """What the command prints."""
    words = ("topology", "users", "--role", role, "--user", user)
    done = run_command("solstice", *words, env={**base_environment(), "AMQP_URL": url})
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_by_a_shell(lines: str, folder: Path, program: str, script: str) -> None:
    """Run the lines with this program on PATH and a password on standard input."""
    (folder / program).write_text(script)
    (folder / program).chmod(0o755)
    subprocess.run(
        ["sh", "-e", "-c", lines],
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
        input=f"{PRINTED}\n",
        text=True,
        check=True,
        capture_output=True,
        timeout=100,
    )


def made(at: RoleBroker, role: Role, folder: Path) -> str:
    """Make the user by what is printed for its role; return its address."""
    parts = urlsplit(at.url)
    if isinstance(at, NatsRoles):
        return at.configured(printed(at.url, at.name, role), PRINTED)
    name = str(getattr(at, "name"))  # noqa: B009  only the brokers with users have one
    script = f'#!/bin/sh\nexec {shutil.which("redis-cli")} -e -p {parts.port} "$@"\n'
    run_by_a_shell(printed(at.url, name, role), folder, "redis-cli", script)
    return parts._replace(netloc=f"{name}:{PRINTED}@{parts.netloc}").geturl()


@pytest.mark.parametrize("role", Role)
async def test_user_of_printed_commands_does_its_work_and_nothing_else(
    roles: RoleBroker, role: Role, tmp_path: Path
) -> None:
    await does_its_work_and_nothing_else(roles, role, made(roles, role, tmp_path))


async def test_publisher_made_by_rabbitmqctl_publishes_requests_and_does_nothing_else(
    rabbitmq_servers: Callable[[str], RabbitMQServer], tmp_path: Path
) -> None:
    server = rabbitmq_servers(DEFAULT)
    if not isinstance(server, PlacedRabbitMQ):
        pytest.skip("not asked for: this RabbitMQ is in a container, and so is its rabbitmqctl")
    with server.vhost() as vhost:
        at = RabbitMQRoles(vhost)
        await at.declared()
        lines = printed(at.url, at.name, Role.PUBLISHER)
        run_by_a_shell(lines, tmp_path, "rabbitmqctl", server.ctl_script())
        parts = urlsplit(at.url)
        url = parts._replace(netloc=f"{quote(at.name)}:{PRINTED}@{parts.hostname}:{parts.port}").geturl()
        assert await refusals(at, url, "publish a request") == []
        for step in ("take a request", "publish a status", "read dead requests"):
            assert await refusals(at, url, step), step
        server.api("DELETE", f"users/{at.name}")
