"""Plain words and exit codes for places that cannot be reached or are not there."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.servers.forks import run_command
from tests.servers.ports import free_ports
from tests.servers.service_process import base_environment

PURGE = ("purge", "--older-than", "30d")
RECORD = ("simulate", "record", "--out", "trace.jsonl")


def run(
    folder: Path, *words: str, program: str = "solstice", **settings: str
) -> "subprocess.CompletedProcess[str]":
    environment = {**base_environment(), "SOLSTICE_HOME": str(folder / "home"), "NO_COLOR": "1", **settings}
    return run_command(program, *words, env=environment, cwd=folder)


@pytest.mark.parametrize("scheme", ["amqp", "redis", "rediss", "nats", "tls"])
def test_a_broker_that_refuses_is_named_in_the_same_words_by_all(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}://127.0.0.1:{free_ports(1)[0]}"
    done = run(tmp_path, "dlq", "list", AMQP_URL=url)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"error: no connection to the broker at {url}")
    assert done.stderr.endswith(": Connection refused\n")


@pytest.mark.parametrize(
    "words",
    [("runs",), ("webhook", "send", "--secret", "x", "--sha", "a" * 40, "--ref", "refs/heads/main")],
    ids=["runs", "webhook send"],
)
def test_a_service_that_refuses_is_named_in_the_same_words(words: Sequence[str], tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    place = () if words == ("runs",) else (url, "--repo-url", "https://forge.example/acme/anvil")
    done = run(tmp_path, *words, *place, SOLSTICE_URL=url)
    assert (done.returncode, done.stdout) == (3, "")
    assert url in done.stderr
    assert done.stderr.endswith(" (Connection refused)\n")


@pytest.mark.parametrize("scheme", ["amqp", "redis", "nats"])
def test_an_unknown_host_is_named_in_the_same_words_by_all(scheme: str, tmp_path: Path) -> None:
    done = run(tmp_path, "dlq", "list", AMQP_URL=f"{scheme}://host.invalid")
    assert done.returncode == 3
    assert done.stderr.startswith(f"error: no connection to the broker at {scheme}://host.invalid")
    assert "Errno" not in done.stderr
    assert "Error -" not in done.stderr
    assert ": -" not in done.stderr


@pytest.mark.parametrize(
    ("program", "words", "setting"),
    [
        ("solstice", ("store", "check"), "DATABASE_URL"),
        ("solstice", PURGE, "DATABASE_URL"),
        ("solstice", RECORD, "DATABASE_URL"),
        ("forge-integration", ("deliveries", "list"), "FORGE_INBOX_URL"),
        ("forge-integration", PURGE, "FORGE_INBOX_URL"),
    ],
)
def test_a_database_that_refuses_is_named(
    program: str, words: tuple[str, ...], setting: str, tmp_path: Path
) -> None:
    url = f"postgresql://ada@127.0.0.1:{free_ports(1)[0]}/none"
    done = run(tmp_path, *words, program=program, **{setting: url})
    assert done.returncode == 3
    assert done.stderr == f"error: the database {url} cannot be used now: Connection refused\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("solstice", ("enqueue", "--repo-url", "https://forge.example/a/b", "--commit-sha", "c" * 40)),
        ("solstice", ("dlq", "list")),
        ("solstice", ("topology", "declare")),
        ("solstice", ("store", "migrate")),
        ("solstice", ("store", "check")),
        ("solstice", PURGE),
        ("solstice", ("webhook", "send", "--repo-url", "https://forge.example/a/b", "--sha", "c" * 40)),
        ("solstice", ("token", "list")),
        ("solstice", ("token", "create", "ada", "--scope", "read")),
        ("solstice", ("keys", "create", "ada")),
        ("forge-integration", ("deliveries", "list")),
        ("forge-integration", PURGE),
    ],
)
def test_a_state_directory_that_is_a_file_is_a_wrong_setting(
    program: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "home").touch()
    done = run(tmp_path, *words, program=program)
    assert done.returncode == 2, done.stderr
    assert f"{tmp_path / 'home'}" in done.stderr
    assert "Errno" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_is_not_there_is_a_wrong_setting(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'none.sqlite'}"
    for words in (("store", "check"), RECORD):
        done = run(tmp_path, *words, DATABASE_URL=url)
        assert done.returncode == 2, words
        assert "none.sqlite: there is no such file" in done.stderr
    done = run(tmp_path, "store", "move", "--from", url, "--to", "postgresql://ada@127.0.0.1:9/none")
    assert done.returncode == 2


class TestDeadLettersThatAreNotThere:
    @pytest.mark.parametrize("words", [("replay", "deadbeef"), ("drop", "deadbeef", "--yes")])
    def test_an_id_that_fits_none_is_a_wrong_command(self, words: tuple[str, ...], tmp_path: Path) -> None:
        for more in ((), ("--dry-run",), ("--json",)):
            done = run(tmp_path, "dlq", *words, *more)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr == (
                "error: there is no dead letter 'deadbeef': 'solstice dlq list' lists those there are\n"
            )

    def test_one_beside_others_is_named_and_the_others_are_dropped(self, tmp_path: Path) -> None:
        sample = {
            "id": "1" * 32,
            "queue": "solstice.jobs.v1.dlq",
            "headers": {"x-solstice-reason": "not_json"},
            "body": "?",
        }
        (tmp_path / "letters.jsonl").write_text(json.dumps(sample) + "\n")
        assert run(tmp_path, "topology", "declare").returncode == 0
        put = run(tmp_path, "dlq", "import", "letters.jsonl")
        assert put.returncode == 0, put.stderr
        (listed,) = json.loads(run(tmp_path, "dlq", "list", "--json").stdout)["dead_letters"]
        done = run(tmp_path, "dlq", "drop", listed["id"], "deadbeef", "--yes")
        assert done.returncode == 0
        assert done.stdout == "removed 1 dead letter\n"
        assert done.stderr.startswith("there is no dead letter 'deadbeef'")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_without_standard_streams_works(closed: str, tmp_path: Path) -> None:
    """Else a database would get a stream's number, and words for people."""
    code = "from solstice_cli.main import main; main()"
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code, "topology", "declare"],
        env={**base_environment(), "SOLSTICE_HOME": str(tmp_path / "home")},
        check=False,
        timeout=100,
    )
    assert done.returncode == 0
    assert (tmp_path / "home" / "broker.sqlite").is_file()
