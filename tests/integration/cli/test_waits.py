"""After two silent seconds a terminal shows the awaited server; a pipe gets nothing more."""

import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.service_process import base_environment

WAITS = "waiting for {} ..."


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and says nothing until the test ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def first_lines(code: str, until: str, **settings: str) -> str:
    """The output of a process on a terminal until `until` appears."""
    own_end, other_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**base_environment(), "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "200", **settings},
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
    )
    os.close(other_end)
    overdue = threading.Timer(100, process.kill)
    overdue.start()
    written = ""
    try:
        while until not in written and (piece := os.read(own_end, 65536)):
            written += piece.decode()
    except OSError:
        pass  # the other end is closed
    finally:
        overdue.cancel()
        process.kill()
        process.wait()
        os.close(own_end)
    return written


def command(program: str, *words: str) -> str:
    return f"import sys; from {program} import main; sys.argv = ['x', *{list(words)!r}]; main()"


@pytest.mark.parametrize(
    ("program", "words", "variable", "url", "what"),
    [
        ("solstice_cli.main", ("runs",), "SOLSTICE_URL", "http://127.0.0.1:{}", "the orchestrator at {}"),
        (
            "solstice_cli.main",
            ("topology", "declare"),
            "AMQP_URL",
            "amqp://127.0.0.1:{}/",
            "the broker at {}",
        ),
        ("solstice_forge.cli", ("statuses", "dead"), "AMQP_URL", "amqp://127.0.0.1:{}/", "the broker at {}"),
        (
            "solstice_forge.cli",
            ("deliveries", "list"),
            "FORGE_INBOX_URL",
            "postgresql://ada@127.0.0.1:{}/inbox",
            "the inbox at {}",
        ),
        (
            "solstice_cli.main",
            ("store", "check"),
            "DATABASE_URL",
            "postgresql://ada@127.0.0.1:{}/store",
            "the database at {}",
        ),
        (
            "solstice_cli.main",
            ("simulate", "record", "--out", "/dev/null"),
            "DATABASE_URL",
            "postgresql://ada@127.0.0.1:{}/store",
            "the database at {}",
        ),
        (
            "solstice_cli.main",
            ("enqueue", "--repo-url", "https://forge.example/a/b", "--commit-sha", "c" * 40),
            "AMQP_URL",
            "amqp://127.0.0.1:{}/",
            "the broker at {}",
        ),
    ],
    ids=["orchestrator", "topology", "statuses", "inbox", "database", "recorded", "enqueue"],
)
def test_a_server_that_says_nothing_is_named(
    silent: int, program: str, words: tuple[str, ...], variable: str, url: str, what: str
) -> None:
    place = url.format(silent)
    sentence = WAITS.format(what.format(place))
    assert sentence in first_lines(command(program, *words), sentence, **{variable: place})


def test_a_database_that_says_nothing_to_a_move_is_named(silent: int, tmp_path: Path) -> None:
    source, target = f"sqlite:///{tmp_path / 'store.sqlite'}", f"postgresql://ada@127.0.0.1:{silent}/store"
    migrated = [sys.executable, "-m", "solstice_cli", "store", "migrate", "--database-url", source]
    subprocess.run(migrated, env=base_environment(), check=True, timeout=100)
    sentence = WAITS.format(f"the database at {target}")
    assert sentence in first_lines(
        command("solstice_cli.main", "store", "move", "--from", source, "--to", target), sentence
    )


WAITING = """
import time
from solstice_common.cli import output
output.SLOW_SECONDS = 0.05
with output.note_when_slow("a thing") as ends:
    {first}
    time.sleep(0.5)
print("the end")
"""


def test_nothing_is_reported_after_the_first_output() -> None:
    assert WAITS.format("a thing") in first_lines(WAITING.format(first="pass"), "the end")
    assert WAITS.format("a thing") not in first_lines(WAITING.format(first="ends()"), "the end")


def test_a_pipe_gets_no_progress() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING.format(first="pass")],
        env=base_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert (done.stdout, done.stderr) == ("the end\n", "")


@pytest.mark.parametrize(("setting", "is_red"), [("", True), ("1", False)])
def test_errors_have_a_colour_on_a_terminal_unless_no_color_is_set(setting: str, *, is_red: bool) -> None:
    code = command("solstice_cli.main", "runs")
    written = first_lines(code, "error:", NO_COLOR=setting, SOLSTICE_URL="http://127.0.0.1:9")
    assert "error:" in written
    assert ("\x1b[31m" in written) is is_red
