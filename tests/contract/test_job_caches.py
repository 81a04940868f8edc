"""What executors promise about the caches of a job."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import CacheSpec
from tests.executor_setups import ExecutorSetup, backend_for, open_executor

CACHES = (
    CacheSpec(name="tools", paths=("~/.cache/tools", "node_modules"), key="tools-{checksum:file}"),
    CacheSpec(name="none", paths=("dust",), key="none-1"),
)
FILL = """
test ! -e ~/.cache; test ! -e node_modules
mkdir -p ~/.cache/tools/bin node_modules/empty; echo 'echo ran' > ~/.cache/tools/bin/run; chmod 700 ~/.cache/tools/bin/run
ln -s bin/run ~/.cache/tools/run; echo x > node_modules/.x; touch -d '2020-02-02 02:02:02.123456789' node_modules/.x
chmod 500 ~/.cache/tools/bin
"""
USE = """
~/.cache/tools/run; test -d node_modules/empty
touch -d '2020-02-02 02:02:02.123456789' same; test ! node_modules/.x -nt same; test ! node_modules/.x -ot same
touch -d '2020-02-02 02:02:02.123456788' older; test node_modules/.x -nt older
ls -ld ~/.cache/tools/bin
echo more >> node_modules/.x; rm node_modules/.x
"""


@pytest.fixture(params=["process", "podman"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ExecutorSetup]:
    async with open_executor(request.param, tmp_path, backend_for(request.param, request)) as opened:
        yield opened


async def test_a_job_finds_what_one_before_it_has_saved(subject: ExecutorSetup) -> None:
    outcome, output = await subject.run(f"{FILL}\nexit 3", caches=CACHES)
    assert outcome.state is JobState.FAILED, output
    assert "save caches" not in output
    outcome, output = await subject.run(FILL, caches=CACHES)
    assert outcome.state is JobState.SUCCEEDED, output
    (entry,) = [used.entry for used in subject.caches.entries()]
    assert f"tools: there is no {entry.key} (" in output
    assert f"tools: saved {entry.key}: " in output
    assert "none: not saved: there is nothing at its path (" in output

    outcome, output = await subject.run(USE, caches=CACHES, trusted=False)
    assert outcome.state is JobState.SUCCEEDED, output
    assert f"tools: restored {entry.key}: " in output
    assert "of the default branch" in output
    assert "\nran\ndr-x------" in output
    assert "tools: saved" not in output

    # An untrusted run saves for itself alone.
    own = (CacheSpec(name="tools", paths=("x",), key="tools-2", fallbacks=("tools-",)),)
    outcome, output = await subject.run("echo bad > x", caches=own, trusted=False)
    assert "tools: saved tools-2" in output
    outcome, output = await subject.run("test ! -e x; ln -s /etc x", caches=own)
    assert outcome.state is JobState.SUCCEEDED, output
    assert "tools: there is no tools-2 (" in output
    assert "tools: not saved: its path is a link to /etc, which leads out of the cache (" in output
    outcome, output = await subject.run("cat x", caches=own, trusted=False)
    assert "tools: restored tools-2: 0.0 KiB of the same change (" in output
    assert "\nbad\n" in output
    assert {used.entry.place.scope.shown for used in subject.caches.entries()} == {
        "default branch",
        "change 7, untrusted",
    }
