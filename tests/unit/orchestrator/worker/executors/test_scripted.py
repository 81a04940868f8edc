"""The scripted executor carries out its steps."""

import asyncio

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE, Outcome, Reason
from solstice_orchestrator.worker.executors.scripted import ScriptedCrash, ScriptedExecutor
from tests.builders import execution, job


async def run_steps(*runs: str) -> tuple[Outcome, bytes]:
    output: list[bytes] = []

    async def log(data: bytes) -> None:
        output.append(data)

    outcome = await ScriptedExecutor().run(execution(job(*runs)), log, asyncio.Event())
    return outcome, b"".join(output)


@pytest.mark.parametrize(
    ("run", "output"),
    [
        ("say hello  there", b"hello  there\n"),
        ("say", b"\n"),
        ("raw ff00 0a".replace(" 0a", "0a"), b"\xff\x00\x0a"),
        ("repeat 3 tick tock", b"tick tock\n" * 3),
        ("sleep 0.01\n  say after", b"after\n"),
        ("pytest -q && echo done", b"pytest -q && echo done\n"),
        ("sleep forever", b"sleep forever\n"),
        ("error no_such_reason", b"error no_such_reason\n"),
        ("exit", b"exit\n"),
        ("hang on", b"hang on\n"),
        ("exit 0\nsay never", b""),
    ],
)
async def test_what_lines_write(run: str, output: bytes) -> None:
    outcome, log = await run_steps(run)
    assert (outcome.state, log) == (JobState.SUCCEEDED, b"$ step 1\n" + output)


@pytest.mark.parametrize("reason", sorted(INFRASTRUCTURE))
async def test_every_failure_of_the_world_can_be_played(reason: Reason) -> None:
    outcome, _ = await run_steps(f"say first\nerror {reason}")
    assert (outcome.state, outcome.reason) == (JobState.ERRORED, reason)


async def test_a_broken_promise_can_be_played() -> None:
    with pytest.raises(ScriptedCrash, match="the glass is broken"):
        await run_steps("crash the glass is broken")
