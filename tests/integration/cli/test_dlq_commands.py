"""`solstice dlq` as a person or a script calls it, on every broker."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from solstice_cli.commands.dead_letters.dlq import app
from solstice_common.broker import Message, open_broker
from solstice_common.broker.delivery import Ack
from solstice_common.messages import Priority
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, QueueType, split_jobs_route
from solstice_orchestrator.store import open_store
from tests.brokers import broker_url, pytest_generate_tests
from tests.contract.test_broker import collect
from tests.dead_letter_replays import JOBS, TOPOLOGY, environment, fill, refused, running_intake
from tests.servers.forks import run_command
from tests.traffic import wait_for_ready

__all__ = ["broker_url", "pytest_generate_tests"]


def solstice(url: str, *words: str, check: int = 0, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run `solstice dlq WORDS` as a process, which must end with the exit code `check`."""
    done = run_command("solstice", "dlq", *words, env=environment(url), given=stdin)
    assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
    return done


async def answer(url: str, *words: str, check: int = 0) -> Any:
    done = await asyncio.to_thread(solstice, url, *words, "--json", check=check)
    return json.loads(done.stdout)


def listed_here(url: str, *words: str) -> Any:
    """The answer of `solstice dlq list WORDS --json`, in this process.

    Many processes take long to start.
    """
    done = CliRunner().invoke(app, ["list", *words, "--json"], env=environment(url))
    assert done.exit_code == 0, (words, done.output, done.exception)
    return json.loads(done.stdout)


async def test_dead_letters_are_listed_counted_and_shown(broker_url: str) -> None:
    async with open_broker(broker_url, name="test") as broker:
        await fill(
            broker,
            refused(1, repo_full_name="anvil/bellows"),
            refused(0, reason="not_before_too_far", priority="high"),
            refused(2),
        )
        listed = await answer(broker_url, "list")
        assert [each["reason"] for each in listed["dead_letters"]] == [
            "not_before_too_far",
            "internal_error",
            "internal_error",
        ]
        assert listed["counts"]["by_reason"] == {"internal_error": 2, "not_before_too_far": 1}
        assert listed["counts"]["by_priority"] == {"default": 2, "high": 1}
        assert listed["counts"]["total"] == 3
        for words, count in [
            (["--reason", "internal_error"], 2),
            (["--repository", "anvil/*"], 1),
            (["--priority", "high"], 1),
            (["--where", "x-solstice-reason=internal_error"], 2),
            (["--queue", "statuses"], 0),
            (["--since", "1s"], 0),
            (["--since", "9999d"], 3),
            (["--since", "9999d", "--reason", "internal_error", "--repository", "anvil/*"], 1),
        ]:
            assert (await asyncio.to_thread(listed_here, broker_url, *words))["counts"]["total"] == count, (
                words
            )
        limited = await asyncio.to_thread(listed_here, broker_url, "--limit", "2")
        assert (limited["dead_letters"], limited["counts"]) == (listed["dead_letters"][:2], listed["counts"])
        lines = (await asyncio.to_thread(solstice, broker_url, "list")).stdout.splitlines()
        assert [line.count("\t") for line in lines] == [7, 7, 7]
        which = listed["dead_letters"][0]["id"]
        whole = await answer(broker_url, "show", which[:8])
        assert json.loads(whole["body"])["priority"] == "high"
        assert whole["headers"]["x-solstice-detail"] == "KeyError: 'x'"
        text = (await asyncio.to_thread(solstice, broker_url, "show", which)).stdout
        assert "not_before_too_far" in text
        await wait_for_ready(broker, JOBS.dlq, 3)


async def test_a_replay_publishes_what_was_chosen_and_removes_only_that(broker_url: str) -> None:
    async with open_broker(broker_url, name="test") as broker:
        await fill(broker, refused(0), refused(1, reason="not_json"), refused(2))
        plan = await answer(broker_url, "replay", "--reason", "internal_error", "--dry-run")
        assert len(plan["would_replay"]) == 2
        await wait_for_ready(broker, JOBS.dlq, 3)
        (report,) = (
            await answer(
                broker_url, "replay", "--queue", "requests", "--reason", "internal_error", "--watch", "0"
            )
        )["replays"]
        assert (len(report["sent"]), report["failed"], report["came_back"]) == (2, {}, [])
        await wait_for_ready(broker, JOBS.dlq, 1)
        async with broker.consume(JOBS.queue, prefetch=10) as consumer:
            deliveries = await collect(consumer, 2, Ack())
    for number, delivery in zip((0, 2), deliveries, strict=True):
        request_id = f"00000000-0000-4000-8000-{number:012}"
        assert (delivery.correlation_id, delivery.routing_key) == (request_id, JOBS.routing_key)
        assert delivery.headers["x-solstice-idempotency-key"] == request_id
        assert "internal_error since 2026-03-01T12:00:" in str(delivery.headers["x-solstice-history"])
        assert "x-solstice-reason" not in delivery.headers


async def test_a_message_that_comes_back_dead_is_reported(broker_url: str, tmp_path: Path) -> None:
    broken = refused(0)
    body = json.dumps({**json.loads(broken.body), "commit_sha": "5f2c"}).encode()
    async with (
        open_broker(broker_url, name="test") as broker,
        open_store(f"sqlite:///{tmp_path / 's.db'}") as store,
    ):
        await fill(
            broker,
            Message(
                exchange=JOBS.dlx, routing_key="", body=body, type="jobrequest.v1", headers=broken.headers
            ),
            refused(1),
        )
        async with running_intake(broker, store):
            (report,) = (await answer(broker_url, "replay", "--queue", "requests", "--watch", "3", check=1))[
                "replays"
            ]
    assert len(report["sent"]) == 2
    assert [each["reason"] for each in report["came_back"]] == ["invalid_field"]


async def test_a_request_that_is_a_run_is_kept_and_the_command_says_why(broker_url: str) -> None:
    spoiled = refused(0)
    async with open_broker(broker_url, name="test") as broker:
        await fill(
            broker,
            Message(
                exchange=JOBS.dlx,
                routing_key="",
                body=spoiled.body,
                type="jobrequest.v1",
                headers={**spoiled.headers, "x-solstice-run": "run-7"},
            ),
        )
        done = await asyncio.to_thread(solstice, broker_url, "replay", "--all")
        assert "solstice rerun run-7" in done.stdout
        await wait_for_ready(broker, JOBS.dlq, 1)


async def test_dead_letters_are_kept_in_a_file_dropped_purged_and_put_back(
    broker_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "dead.jsonl"
    async with open_broker(broker_url, name="test") as broker:
        await fill(broker, *(refused(number) for number in range(5)))
        assert await answer(broker_url, "export", str(file)) == {"file": str(file), "exported": 5}
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        assert len(lines) == 5
        assert len((await answer(broker_url, "drop", lines[0]["id"], "--yes"))["dropped"]) == 1
        await wait_for_ready(broker, JOBS.dlq, 4)
        done = await answer(broker_url, "import", str(file))
        assert done["queues"][JOBS.dlq] == {"added": 1, "present": 4, "failed": []}
        again = await answer(broker_url, "import", str(file))
        assert again["queues"][JOBS.dlq] == {"added": 0, "present": 5, "failed": []}
        listed = await answer(broker_url, "list")
        assert sorted(each["id"] for each in listed["dead_letters"]) == sorted(each["id"] for each in lines)
        assert (await answer(broker_url, "purge", "--queue", "requests", "--yes"))["purged"] == {JOBS.dlq: 5}
        await wait_for_ready(broker, JOBS.dlq, 0)


async def test_a_broker_without_queues_leads_to_the_command_that_makes_them(
    broker_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "dead.jsonl"
    file.write_text(f'{{"queue": "{JOBS.dlq}", "body": "x"}}\n')
    done = await answer(broker_url, "import", str(file), check=1)
    (failed,) = done["queues"][JOBS.dlq]["failed"]
    assert "solstice topology declare" in failed
    async with open_broker(broker_url, name="test") as broker:
        await broker.ready(30)
        await broker.declare(TOPOLOGY)
        piped = await asyncio.to_thread(solstice, broker_url, "import", "-", "--json", stdin=file.read_text())
        assert json.loads(piped.stdout)["queues"][JOBS.dlq]["added"] == 1
        await wait_for_ready(broker, JOBS.dlq, 1)
    (line,) = (await asyncio.to_thread(solstice, broker_url, "export")).stdout.splitlines()
    assert json.loads(line)["body"] == "x"


async def test_queues_of_classes_are_named_and_purged_with_the_requests(tmp_path: Path) -> None:
    """Also those that were left when AMQP_PRIORITIES went back to one."""
    url, split = f"sqlite:///{tmp_path / 'broker.db'}", split_jobs_route(BrokerSettings())
    critical = split.of(Priority.CRITICAL)
    async with open_broker(url, name="test") as broker:
        await fill(broker, refused(0))
        assert (await answer(url, "purge", "--queue", "requests", "--yes"))["purged"] == {JOBS.dlq: 1}
        await broker.declare(split.topology(QueueType.QUORUM))
        await broker.publish([replace(refused(1, priority="critical"), exchange=critical.dlx)])
        await wait_for_ready(broker, critical.dlq, 1)
        counts = (await answer(url, "list", "--queue", "requests.critical"))["counts"]
        assert counts["by_priority"] == {"critical": 1}
        assert counts["by_queue"] == {critical.dlq: 1}
        file = tmp_path / "dead.jsonl"
        await answer(url, "export", str(file))
        purged = (await answer(url, "purge", "--queue", "requests", "--yes"))["purged"]
        assert purged == {JOBS.dlq: 0, **{each.dlq: int(each is critical) for each in split.classes.values()}}
        # No service declares the queue that it was in.
        assert list((await answer(url, "import", str(file)))["queues"]) == [JOBS.dlq]
        again = await answer(url, "import", str(file), "--amqp-priorities", "split")
        assert list(again["queues"]) == [critical.dlq]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["replay"], "say which"),
        (["drop"], "say which"),
        (["purge"], "name the queue"),
        (["purge", "--queue", "requests"], "--yes"),
        (["list", "--queue", "nothing"], "there is no dead-letter queue"),
        (["list", "--where", "x"], "HEADER=VALUE"),
        (["list", "--since", "long"], "is no age"),
        (["show", "ab"], "at least 4"),
        (["show", "abcdef"], "there is no dead letter"),
        (["replay", "--all", "--rate", "0"], "--rate"),
    ],
)
def test_a_wrong_call_is_answered_with_the_error(words: list[str], problem: str, tmp_path: Path) -> None:
    done = solstice(f"sqlite:///{tmp_path / 'broker.db'}", *words, check=2)
    assert problem in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("list --reason inv", ["invalid_field"]),
        ("replay --reason delivery", ["delivery_limit"]),
        ("drop --queue ", ["requests", "cancels", "statuses"]),
        ("import --queue sta", ["statuses"]),
    ],
)
def test_the_shell_completes_queues_and_reasons(words: str, offered: list[str]) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("solstice"), "dlq", *words.split(" ")],
        env=environment("") | {"_SOLSTICE_COMPLETION": "fish"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.split() == offered, (done.stdout, done.stderr)


def test_a_wrong_line_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    file.write_text(f'{{"queue": "{STATUSES.dlq}", "body": ""}}\n\n{{"queue": "x"}}\n')
    done = solstice(f"sqlite:///{tmp_path / 'broker.db'}", "import", str(file), check=2)
    assert "line 3" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        '{"queue": "%s", "body_base64": "é"}',
        '{"queue": "%s", "body": "", "type": "\\ud800"}',
        '{"queue": "%s", "body": "", "headers": ' + "[" * 100_000,
        '{"queue": "%s", "body": "", "headers": {"x": NaN}}',
        '{"queue": "%s.elsewhere", "body": ""}',
    ],
    ids=["no base64", "half a character", "nested", "no number", "another queue"],
)
def test_a_hostile_line_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "dead.jsonl"
    file.write_text(line % STATUSES.dlq)
    done = solstice(f"sqlite:///{tmp_path / 'broker.db'}", "import", str(file), check=2)
    assert re.search(r"line 1\b", done.stderr)
    assert "line 2" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("end", "problem"), [("", "Expecting ',' delimiter"), (', "typ', "Invalid control character")]
)
def test_a_line_without_its_end_is_named_by_one_number(end: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    file.write_text(f'\n{{"queue": "{STATUSES.dlq}", "body": ""{end}\n')
    done = solstice(f"sqlite:///{tmp_path / 'broker.db'}", "import", str(file), check=2)
    assert f"line 2 is no JSON: {problem} at column" in done.stderr
    assert re.findall(r"line \d", done.stderr) == ["line 2"]


def test_a_wrong_line_of_standard_input_is_named_so(tmp_path: Path) -> None:
    done = solstice(f"sqlite:///{tmp_path / 'broker.db'}", "import", "-", check=2, stdin="[]\n")
    assert "standard input: line 1 is no JSON object" in " ".join(done.stderr.split())


def test_a_byte_order_mark_and_ends_of_lines_of_windows_are_read(tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"queue": "%s", "body": ""}\r\n' % STATUSES.dlq.encode())
    done = solstice(f"sqlite:///{tmp_path / 'broker.db'}", "import", str(file), "--dry-run")
    assert "1 dead letter" in done.stdout


def into_a_closed_pipe(url: str, *words: str) -> "subprocess.CompletedProcess[bytes]":
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", "solstice_cli", "dlq", *words],
            env=environment(url),
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
            timeout=100,
        )
    finally:
        os.close(writer)


async def test_a_closed_pipe_ends_what_prints_quietly(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    async with open_broker(url, name="test") as broker:
        await fill(broker, *map(refused, range(300)))
    dead_letter = (await answer(url, "list"))["dead_letters"][0]["id"]
    for words in (["list"], ["list", "--json", "--limit", "300"], ["show", dead_letter], ["export"]):
        done = await asyncio.to_thread(into_a_closed_pipe, url, *words)
        assert (done.returncode, done.stderr) == (1, b""), words


def test_a_broker_that_is_away_is_named() -> None:
    done = solstice("amqp://guest:secret@127.0.0.1:9/%2f", "list", check=3)
    assert "127.0.0.1:9" in done.stderr
    assert "secret" not in done.stderr
