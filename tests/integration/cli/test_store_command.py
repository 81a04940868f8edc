"""`solstice store` and `solstice purge` as a person or a script calls them."""

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.store import open_store
from tests.populated_store import PopulatedStore, populate
from tests.servers.forks import run_command
from tests.servers.postgresql import ScratchDatabase
from tests.servers.service_process import base_environment
from tests.stores import ManualClock

LONG_AGO = 1_500_000_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def populated(file: Path) -> PopulatedStore:
    """Fill a store whose contents are years old."""
    clock = ManualClock(now=LONG_AGO)
    async with open_store(f"sqlite:///{file}", clock=clock) as store:
        return await populate(store, clock)


def solstice(*words: str, database: str = "", check: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run it as a process, which must end with the exit code `check`."""
    environment = {**base_environment(), **({"DATABASE_URL": database} if database else {})}
    done = run_command("solstice", *words, env=environment)
    assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
    return done


def answer(*words: str, database: str = "", check: int = 0) -> Any:
    return json.loads(solstice(*words, "--json", database=database, check=check).stdout)


def test_a_store_is_moved_checked_and_purged(
    file: Path, populated: PopulatedStore, postgresql_database: ScratchDatabase
) -> None:
    source, target = f"sqlite:///{file}", postgresql_database.url
    assert answer("store", "check", database=source)["counts"]["runs"] == 7
    pending = answer("store", "check", database=target, check=1)
    assert (pending["version"], pending["well"]) == (0, False)
    assert answer("store", "migrate", database=target)["version"] == pending["known"]

    moved = answer("store", "move", "--from", source, "--to", target)
    assert moved["rows"]["runs"] == 7
    assert answer("store", "check", database=target)["well"]
    again = solstice("store", "move", "--from", source, "--to", target, check=1)
    assert "is not empty" in again.stderr

    for database in (source, target):
        old = answer("purge", "--older-than", "30d", "--dry-run", database=database)
        assert old == {"runs": 3, "older_than_seconds": 30 * 86400, "removed": False}
        assert answer("purge", "--older-than", "30d", database=database)["runs"] == 3
        assert answer("purge", "--older-than", "30d", database=database)["runs"] == 0
        checked = answer("store", "check", database=database)
        assert checked["well"]
        assert checked["counts"]["runs"] == 4
        assert checked["counts"]["request_aliases"] == 0


def test_an_age_may_be_written_in_seconds(file: Path, populated: PopulatedStore) -> None:
    output = solstice("purge", "--older-than", "60s", database=f"sqlite:///{file}").stdout
    assert output == "removed 3 runs that ended more than 60s ago\n"
    wrong = solstice("purge", "--older-than", "60 seconds", database=f"sqlite:///{file}", check=2).stderr
    assert wrong == "error: --older-than: '60 seconds' is no age; write 30d, 12h, 90m or 60s\n"


def test_answers_are_sentences_and_hold_no_password(
    file: Path, populated: PopulatedStore, postgresql_database: ScratchDatabase
) -> None:
    source, target = f"sqlite:///{file}", postgresql_database.url
    output = [
        solstice("store", "move", "--from", source, "--to", target),
        solstice("store", "migrate", database=target),
        solstice("store", "check", database=target),
        solstice("purge", "--older-than", "12h", database=target),
        solstice("store", "move", "--from", source, "--to", target, check=1),
    ]
    assert "moved     7 runs" in output[0].stdout
    assert "has schema version" in output[1].stdout
    assert "all is well" in output[2].stdout
    assert "removed 3 runs that ended more than 12h ago" in output[3].stdout
    secret = target.partition("@")[0].rpartition(":")[2]
    for each in output:
        assert secret not in each.stdout + each.stderr


def test_errors_are_one_line_with_the_right_exit_code(
    file: Path, populated: PopulatedStore, tmp_path: Path
) -> None:
    unreachable = "postgresql://ada:secret@127.0.0.1:9/jobs"
    source = f"sqlite:///{file}"
    cases = [
        (("store", "check"), "mysql://ada@db.example/jobs", 2, "must start with"),
        (("store", "check"), unreachable, 3, "cannot be used now"),
        (("store", "check"), f"sqlite:///{tmp_path / 'none.db'}", 2, "no such file"),
        (("purge", "--older-than", "a month"), source, 2, "write 30d, 12h, 90m or 60s"),
        (("store", "move", "--from", source, "--to", source), "", 2, "does not start with postgresql://"),
        (("store", "move", "--from", unreachable, "--to", unreachable), "", 2, "write sqlite:///FILE"),
        (("store", "move", "--from", source, "--to", unreachable), "", 3, "cannot be used now"),
    ]
    for words, database, code, message in cases:
        done = solstice(*words, database=database, check=code)
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert "secret" not in done.stderr


def test_a_problem_is_an_exit_code_too(file: Path, populated: PopulatedStore) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE jobs SET worker_id = NULL WHERE state = 'running'")
    done = solstice("store", "check", database=f"sqlite:///{file}", check=1)
    assert "problem   2 running jobs without a holder" in done.stdout
