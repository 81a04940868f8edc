"""On 60 and 80 columns, every printed id works in `solstice show`."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from datetime import UTC, datetime
from pathlib import Path

import pytest

from solstice_forge.commands.deliveries_command import COLUMNS
from tests.servers.rabbitmq import Vhost
from tests.servers.service_process import base_environment

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
IDS = [f"0190b8c7-0000-7000-8000-00000000{number:04x}" for number in range(3)]
SHOW = """
from datetime import UTC, datetime
from solstice_cli.output import display
ids = {ids!r}
now = datetime(2026, 1, 31, 12, tzinfo=UTC)
common = {{"state": "cancelled", "created_at": "2026-01-31T11:00:00Z", "started_at": "2026-01-31T11:00:00Z",
    "finished_at": None, "reason": "lease_expired_and_more", "repo_url": "https://forge.example/a/b.git",
    "repo_full_name": "a-very-long-owner-name/a-very-long-repository-name", "commit_sha": "c" * 40,
    "ref": "refs/heads/a-very-long-branch-name", "event": "change_request", "source": "forgejo",
    "name": "a-job-with-a-very-long-name-linux-3.12", "runs_on": "linux-with-a-long-label", "attempt": 2}}
rows = [{{**common, "run_id": each, "job_id": each}} for each in ids]
display.{what}(rows, now=now)
"""


def on_a_terminal(code: str, columns: int, **settings: str) -> str:
    """The output of a process on a real pseudo-terminal of that width."""
    own_end, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**base_environment(), "TERM": "xterm", "NO_COLOR": "1", **settings},
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
    )
    os.close(other_end)
    written = b""
    try:
        while piece := os.read(own_end, 65536):
            written += piece
    except OSError:
        pass  # the other end is closed
    os.close(own_end)
    assert process.wait(60) == 0, written.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode())


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("what", ["print_runs", "print_jobs"])
def test_no_id_and_no_state_is_cut(what: str, columns: int, tmp_path: Path) -> None:
    shown = on_a_terminal(SHOW.format(ids=IDS, what=what), columns)
    lines = shown.replace("\r", "").splitlines()
    assert all(len(line.rstrip()) <= columns for line in lines)
    for each in IDS:
        (line,) = [line for line in lines if line.startswith(each[-8:] + " ")]
        assert " cancelled" in line
    assert "\u2026" not in shown


DEAD = """
from rich.console import Console
from solstice_forge.commands import statuses_command
from solstice_forge.statuses.dead_statuses import DeadStatus
letter = DeadStatus(reason="not_found", detail="the forge answered 404 Not Found: [Not Found]", attempts=3,
    refused_at="2026-01-31T11:00:00.000Z", source_name="forgejo-inside", state="succeeded", commit_sha="c" * 40,
    repository="a-long-owner-name/a-very-long-repository", context="solstice / a-job-with-a-long-name-linux-3.12")
statuses_command.dead_statuses = lambda *_: __import__("asyncio").sleep(0, [letter])
statuses_command.dead_command(statuses_command.BrokerSettings(amqp_url="sqlite:///{file}"))
"""


@pytest.mark.parametrize("columns", [60, 80])
def test_a_dead_status_is_shown_whole(columns: int, tmp_path: Path) -> None:
    shown = on_a_terminal(DEAD.replace("{file}", str(tmp_path / "broker")), columns)
    lines = shown.replace("\r", "").splitlines()
    assert all(len(line.rstrip()) <= columns for line in lines)
    words = " ".join(" ".join(lines).split())
    assert "a-long-owner-name/a-very-long-repository cccccccccc" in words
    assert "not_found: the forge answered 404 Not Found: [Not Found]" in words


@pytest.mark.parametrize("columns", [60, 200])
def test_dead_status_of_a_stranger_steers_no_terminal(columns: int, tmp_path: Path) -> None:
    hostile = DEAD.replace("not_found", r"not_found\x1b]0;title\x07").replace(
        "forgejo-inside", r"a\x9b1mb\u202ec"
    )
    shown = on_a_terminal(hostile.replace("{file}", str(tmp_path / "broker")), columns)
    assert "not_found" in shown
    # Colours are gone already; nothing else may be left that steers.
    assert [each for each in shown if each in "\x1b\x07\x9b\u202e"] == []


COMMANDS = """
import asyncio
from solstice_cli.main import app
from solstice_common.broker import open_broker, open_dead_letter_queues
from solstice_forge.cli import app as forge_app
from tests.browsing import browse
from tests.dead_letter_replays import JOBS, fill, refused

async def refuse():
    async with open_broker({url!r}, name="test") as broker:
        await fill(broker, refused(1, repo_full_name={repository!r}))
    async with open_dead_letter_queues({url!r}, name="test") as queues:
        (found,) = await browse(queues.queue(JOBS.dlq), 1)
        return found.id

dead_letter = asyncio.run(refuse())
for words in {commands!r}:
    print("$", *words[:2])
    try:
        (forge_app if words[0] == "statuses" else app)([dead_letter if each == "ID" else each for each in words])
    except SystemExit as ended:
        assert not ended.code, words
"""


def unfolded(table: str) -> list[str]:
    """The cells of the only row of a table."""
    heading, *lines = table.partition("Not enough")[0].splitlines()
    starts = [found.start() for found in re.finditer(r"\S+", heading)]
    return [
        "".join(line[start:end].strip() for line in lines)
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]


def test_nothing_of_dead_letters_topology_and_keys_is_cut_on_60_columns(tmp_path: Path) -> None:
    repository, key = "a-very-long-owner-name/a-very-long-repository-name", "a-long-name-of-a-key-of-2026"
    url, file = f"sqlite:///{tmp_path / 'broker.db'}", str(tmp_path / "dead.jsonl")
    broker = ("--amqp-url", url)
    commands = {
        "dlq list": [*broker],
        "dlq show": ["ID", *broker],
        "dlq export": [file, *broker],
        "dlq drop": ["ID", "--yes", *broker],
        "dlq import": [file, *broker],
        "dlq replay": ["--all", "--dry-run", *broker],
        "dlq purge": ["--queue", "requests", "--yes", *broker],
        "topology show": [],
        "topology check": [*broker],
        "topology users": ["--amqp-url", "redis://127.0.0.1/0"],
        "keys create": [key, "--source", "github", "--source", "gitlab", "--right", "trusted"],
        "keys list": [],
        "keys revoke": [key],
        "statuses dead": [*broker],
        "statuses replay": [*broker],
    }
    words = [[*name.split(), *more] for name, more in commands.items()]
    code = COMMANDS.format(url=url, repository=repository, commands=words)
    shown = on_a_terminal(code, 60, SOLSTICE_HOME=str(tmp_path / "home")).replace("\r", "")
    printed = dict(re.findall(r"^\$ (\w+ \w+)\n(.*?)(?=^\$ |\Z)", shown, re.MULTILINE | re.DOTALL))
    assert list(printed) == list(commands)
    assert "\u2026" not in shown
    listed, numbers = printed["dlq list"].split("\n\n")
    for table in (listed, printed["keys list"]):
        assert all(len(line.rstrip()) <= 60 for line in table.splitlines())
    assert "widen the terminal, or use --json" in listed
    dead_letter, *cells = unfolded(listed)
    assert cells == ["internal_error", repository]
    assert "dead letters  1\n" in numbers
    *of_the_key, age = unfolded(printed["keys list"])
    assert of_the_key == [key, "github,gitlab", "**", "trusted"]
    assert age.endswith(" s")
    for command, text in {
        "dlq show": f"repository                  {repository}\n",
        "dlq export": f"wrote 1 dead letter to {file}\n",
        "dlq drop": "removed 1 dead letter\n",
        "dlq import": "solstice.jobs.v1.dlq: added 1, there already 0, failed 0\n",
        "dlq replay": f"{dead_letter}\treplay\tinternal_error\n",
        "dlq purge": "removed 1 dead letter from solstice.jobs.v1.dlq\n",
        "topology show": "x-dead-letter-strategy=at-least-once, x-overflow=reject-publish, x-queue-type=quorum\n",
        "topology check": f"{url}: as they must be\n",
        "topology users": "~solstice.statuses.v1 ~solstice.statuses.v1.dlq)'\n",
        "keys create": f"SIGNING_KEYS={tmp_path / 'home' / 'keys' / key}.json, which",
        "keys revoke": f"{key} is revoked\n",
        "statuses dead": "no dead letters: every forge took its statuses\n",
        "statuses replay": "sent 0 again\n",
    }.items():
        # What is longer than a line is left to the terminal, which lets it be copied whole.
        assert text in printed[command], command


TOPOLOGY = """
from solstice_cli.main import app
from solstice_cli.output import migrations
from solstice_common.broker.rabbitmq.migration.migration_plan import Step, StepKind
from solstice_common.topology import Queue

for words in {commands!r}:
    print("$", words[1])
    try:
        app(words)
    except SystemExit as ended:
        print("exit", ended.code)
print("$ progress", flush=True)
migrations.EVERY_SECONDS = 0
progress = migrations.MigrationProgress(quiet=False)
dead = "solstice.jobs.v1.critical.dlq"
step = Step(kind=StepKind.EMPTY, queue=Queue(name=dead), into=dead + ".migrating")
for count in (7, 54321):
    progress.moved(step, count)
    progress.waiting(step, count)
progress.waiting(step, None)
"""


def test_nothing_of_a_check_and_a_migration_is_cut_on_60_columns(rabbitmq_vhost: Vhost) -> None:
    url, management = rabbitmq_vhost.url, rabbitmq_vhost.server.management_url
    broker = ("--amqp-url", url, "--management-url", management)
    code = TOPOLOGY.format(
        commands=[
            ["topology", "declare", "--amqp-url", url, "--amqp-queue-type", "classic"],
            ["topology", "check", *broker],
            ["topology", "check", "--json", *broker],
            ["topology", "migrate", "--dry-run", *broker],
        ]
    )
    shown = on_a_terminal(code, 60)
    assert "\u2026" not in shown
    _, declared, checked, document, plans, progress = re.split(r"\$ \w+\r\n", shown)
    assert declared.endswith("exit 0\r\n")
    differences = json.loads(document.partition("exit 1")[0])["differences"]
    assert len(differences) >= 6
    as_shown = [
        f"{each['object']}\r\n  {each['difference']}\r\n  -> {each['remedy']}" for each in differences
    ]
    assert checked == "\r\n".join([*as_shown, "exit 1\r\n"])
    for queue in ("solstice.jobs.v1", "solstice.statuses.v1.dlq"):
        assert f"queue {queue}\r\n  is a classic queue, has to be quorum" in checked
        assert (
            f"  1. declare {queue}.migrating (x-queue-type=classic, x-solstice-migrating={queue})\r\n"
            in plans
        )
    assert plans.endswith("exit 0\r\n")
    # A line that wraps could not be written over by the next one.
    lines = progress.split("\r")
    assert all(len(line) < 60 for line in lines)
    assert "  moved 54321" in lines
    assert "  waiting: 54321 held" in lines


DELIVERIES = """
import time
from solstice_forge.commands import deliveries_command
from solstice_forge.inbox.log import DeliveryEntry
from solstice_forge.inbox.protocol import Decision
found = [DeliveryEntry(row_id=each, source_name="forgejo-of-the-tide-club", delivery_id="d", event_name="pull_request_review_comment",
    received_at=time.time() - 90000, repo_full_name="a-very-long-owner-name/a-very-long-repository-name",
    decision=Decision.DUPLICATE, reason="same_event_of_another_hook", detail="", request_ids=("r" * 36,), repeats=7,
    published=None, attempts=1, last_failure=None) for each in {numbers}]
deliveries_command._print_list(found, 12345, time.time(), has_filters=False)
"""


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_no_number_of_a_delivery_is_cut(columns: int) -> None:
    numbers = [12_345_678, 87_654_321, 1]
    shown = on_a_terminal(DELIVERIES.format(numbers=numbers), columns)
    lines = shown.replace("\r", "").splitlines()
    assert all(len(line.rstrip()) <= columns for line in lines)
    # A heading that is cut stands over a column of two or three letters a line.
    headings = lines[0].split()
    assert {"NUMBER", "REPOSITORY", "DECISION", "NOW"} <= set(headings) <= set(COLUMNS)
    for number in numbers:
        (line,) = [line for line in lines if line.startswith(f"{number} ")]
        assert " duplicate" in line
    assert "\u2026" not in shown


CACHES = """
from datetime import UTC, datetime
from solstice_cli.output import display
caches = [dict(cache_id=each[-12:], key="dependencies-" + "f" * 40 + "-3.12", scope="branch a-very-long-branch-name",
    repository="forge.example/a-very-long-owner-name/a-very-long-repository-name", size=123456789, files=12345,
    used_at="2026-01-31T11:00:00Z", system="linux, podman, x86_64, docker.io/library/python:3.12", digest="d" * 64)
    for each in {ids!r}]
display.print_caches(caches, now=datetime(2026, 1, 31, 12, tzinfo=UTC))
"""


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_id_and_no_key_of_a_cache_is_cut(columns: int) -> None:
    shown = on_a_terminal(CACHES.format(ids=IDS), columns)
    lines = shown.replace("\r", "").splitlines()
    assert all(len(line.rstrip()) <= columns for line in lines)
    for each in IDS:
        assert any(line.startswith(each[-12:] + " ") for line in lines)
    assert shown.count("f") >= 3 * 40
    assert "\u2026" not in shown
    assert "..." not in shown
