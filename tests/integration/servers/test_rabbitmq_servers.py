"""The tests' own RabbitMQ servers are private, controllable, and end with the tests."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.servers.rabbitmq import RabbitMQServer, Vhost

EVERY_VERSION = True

ROOT = Path(__file__).resolve().parents[3]


def test_the_server_answers_with_the_version_it_names(rabbitmq: RabbitMQServer) -> None:
    assert rabbitmq.api("GET", "overview")["rabbitmq_version"] == rabbitmq.version
    assert rabbitmq.amqp_answers()


def test_a_vhost_is_gone_after_its_test(rabbitmq: RabbitMQServer) -> None:
    with rabbitmq.vhost() as vhost:
        assert vhost.name in [row["name"] for row in rabbitmq.api("GET", "vhosts")]
    assert vhost.name not in [row["name"] for row in rabbitmq.api("GET", "vhosts")]


def test_a_server_of_ones_own_comes_back_on_the_same_ports_with_its_data(own_rabbitmq_vhost: Vhost) -> None:
    server, body = own_rabbitmq_vhost.server, {"durable": True, "arguments": {"x-queue-type": "quorum"}}
    own_rabbitmq_vhost.api("PUT", "queues", "kept", body)
    server.kill()
    assert not server.amqp_answers()
    server.start()
    assert [row["name"] for row in own_rabbitmq_vhost.api("GET", "queues")] == ["kept"]


SERVER = """
import subprocess, sys, time
# Another session and another parent, as a daemon does it.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", flush=True)
{}
"""
TEST_RUN = """
import subprocess, sys, time
from tests.servers import process_guard
command = [sys.executable, process_guard.__file__, sys.argv[1], sys.executable, "-c", sys.argv[2]]
kept = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
kept.stdout.readline()
print(kept.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("then", ["time.sleep(600)", "sys.exit()"], ids=["running", "ended-by-itself"])
def test_a_killed_test_run_leaves_no_server_behind(tmp_path: Path, then: str) -> None:
    directory = tmp_path / "server"
    directory.mkdir()
    command = [sys.executable, "-c", TEST_RUN, str(directory), SERVER.format(then)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        guard = int(run.stdout.readline())
        below = _below(guard)
        run.kill()
    deadline = time.monotonic() + 30
    while any(_runs(pid) for pid in [guard, *below]):
        assert time.monotonic() < deadline, "the server outlived its test run"
        time.sleep(0.05)
    assert then == "sys.exit()" or (len(below) == 2 and not directory.exists())


def _runs(pid: int) -> bool:
    """Whether it has not ended.

    Orphans may be ours: another test of this process may have run an orchestrator in it, which is a subreaper.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _below(pid: int) -> set[int]:
    """All processes below one; none when it has ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return set()
    return {int(child) for child in children}.union(*(_below(int(child)) for child in children))
