"""Jobs as real processes: nothing of them escapes, leaks or stays behind."""

import asyncio
import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from solstice_common.errors import ConfigurationError
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason, StepSpec
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.processes import supervisor
from solstice_orchestrator.processes.children import run
from solstice_orchestrator.processes.small_trees import SMALL_TREE
from solstice_orchestrator.worker.executors import process
from solstice_orchestrator.worker.executors.host_launcher import HostLauncher
from solstice_orchestrator.worker.executors.source_checkout import SourceCheckout
from solstice_orchestrator.worker.workspaces import (
    TOP_OF_HIERARCHY,
    Workspaces,
    open_workspaces,
    remove_tree,
    spread,
    sweep,
)
from solstice_orchestrator.workflow.job_plan import SCRIPT_PATH, script_job
from tests.builders import execution, job, job_request
from tests.executor_harness import (
    GROUPS,
    NEEDS_PROC,
    ExecutorHarness,
    processes_sleeping,
    replace_executor,
    unique_sleep,
)
from tests.polling import wait_until
from tests.repositories import Repository

# -- the environment of a job
# ----------------------------------------------------------------------------------------------


async def test_a_job_works_in_its_commit(harness: ExecutorHarness) -> None:
    outcome = await harness.run("cat hello.txt; git rev-parse HEAD; pwd; echo $SOLSTICE_WORKSPACE")
    assert outcome.state is JobState.SUCCEEDED
    lines = harness.text.splitlines()
    assert lines[:2] == ["$ checkout", f"{harness.sha} of {harness.repository.url}"]
    assert lines[3:5] == ["hello from the commit", harness.sha]
    assert lines[5] == lines[6]


@pytest.mark.parametrize(
    ("mode", "executed"), [(0o755, True), (0o644, False)], ids=["executable", "not executable"]
)
async def test_a_script_is_executed_when_it_may_be_and_read_by_sh_otherwise(
    harness: ExecutorHarness, mode: int, executed: bool
) -> None:
    harness.repository.commit({SCRIPT_PATH: '#!/usr/bin/env sh\necho "$0"\nexit 3\n'})
    (harness.repository.path / SCRIPT_PATH).chmod(mode)
    harness.sha = harness.repository.commit({})
    outcome = await harness.run(*script_job("linux").steps)
    assert (outcome.exit_code, outcome.step) == (3, SCRIPT_PATH)
    # The kernel runs a program by a path with a slash in front; sh is told the file as we wrote it.
    (called,) = [line for line in harness.text.splitlines() if line.endswith(SCRIPT_PATH) and "$" not in line]
    assert called.endswith(f"/{SCRIPT_PATH}") is executed


async def test_nothing_of_our_environment_reaches_a_job(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMQP_URL", "amqp://user:password@broker.example")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    step = StepSpec(name="look", run="env", env={"LEVEL": "step", "PATH": "/opt/own:/usr/bin:/bin"})
    await harness.run(step, env={"LEVEL": "job", "COLOUR": "blue"})
    found = dict(line.split("=", 1) for line in harness.text.splitlines() if "=" in line)
    assert set(found) - {"_", "PWD", "OLDPWD", "SHLVL"} == {
        *("CI", "COLOUR", "HOME", "LANG", "LEVEL", "LOGNAME", "PATH", "TMPDIR", "USER"),
        *("SOLSTICE", "SOLSTICE_ATTEMPT", "SOLSTICE_COMMIT_SHA", "SOLSTICE_EVENT", "SOLSTICE_JOB_ID"),
        *("SOLSTICE_JOB_NAME", "SOLSTICE_REF", "SOLSTICE_REPOSITORY", "SOLSTICE_REPO_URL"),
        *("SOLSTICE_REQUEST_ID", "SOLSTICE_SOURCE", "SOLSTICE_STEP", "SOLSTICE_WORKSPACE"),
    }
    assert (found["LEVEL"], found["COLOUR"], found["PATH"]) == ("step", "blue", "/opt/own:/usr/bin:/bin")
    assert (found["CI"], found["SOLSTICE_STEP"]) == ("true", "look")
    assert found["HOME"].startswith(str(harness.workspaces.directory))
    assert found["TMPDIR"].startswith(str(harness.workspaces.directory))


async def test_a_job_inherits_no_file_but_its_three(harness: ExecutorHarness) -> None:
    await harness.run("ls /proc/self/fd; readlink /proc/self/fd/0")
    # ls opens the directory itself as the fourth.
    assert harness.text.splitlines()[-5:] == ["0", "1", "2", "3", "/dev/null"]


@NEEDS_PROC
async def test_a_job_is_ended_before_other_processes_when_memory_is_short(harness: ExecutorHarness) -> None:
    """Also one with many small processes: of equal ones, the kernel ends the largest."""
    await harness.run("cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj")
    assert [int(line) >= 500 for line in harness.text.splitlines()[-2:]] == [True, True]


async def test_the_workspace_is_private(harness: ExecutorHarness) -> None:
    await harness.run("stat -c %a . .. $HOME $TMPDIR; umask")
    assert harness.text.splitlines()[-5:] == ["700", "700", "700", "700", "0022"]


async def test_output_and_errors_keep_their_order(harness: ExecutorHarness) -> None:
    await harness.run("for i in $(seq 300); do echo out $i; echo err $i >&2; done")
    lines = harness.text.splitlines()[3:]
    assert lines == [f"{stream} {n}" for n in range(1, 301) for stream in ("out", "err")]


async def test_a_step_ends_with_its_first_failing_command(harness: ExecutorHarness) -> None:
    outcome = await harness.run("echo before\nfalse\necho after")
    assert (outcome.exit_code, "after" in harness.text) == (1, False)


async def test_with_bash_a_pipe_fails_with_any_of_its_commands(harness: ExecutorHarness) -> None:
    assert (await harness.run('test -n "$BASH_VERSION"\nfalse | true')).exit_code == 1


async def test_without_bash_steps_run_with_sh(harness: ExecutorHarness, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    replace_executor(harness, launcher=HostLauncher(path=str(tmp_path / "bin")))
    outcome = await harness.run('echo "bash: ${BASH_VERSION:-none}"\nexit 4')
    assert outcome.exit_code == 4
    assert "bash: none" in harness.text


async def test_a_script_may_be_long_and_hold_anything(harness: ExecutorHarness) -> None:
    outcome = await harness.run("cat <<'END'\n" + "ü'\"\\$x\n" * 30_000 + "END\n", "echo next")
    assert outcome.state is JobState.SUCCEEDED
    assert "of the rest only its end is stored" in harness.text


async def test_steps_share_the_workspace_and_what_runs_in_the_background(harness: ExecutorHarness) -> None:
    seconds_asleep = unique_sleep()
    await harness.run(
        f"sleep {seconds_asleep} &\necho made > made.txt",
        f"cat made.txt; pgrep -f -x 'sleep {seconds_asleep}' | wc -l",
    )
    assert harness.text.splitlines()[-2:] == ["made", "1"]
    assert processes_sleeping(seconds_asleep) == set()


async def test_surroundings_that_no_process_can_have_fail_the_step(harness: ExecutorHarness) -> None:
    outcome = await harness.run(StepSpec(name="odd", run="true", env={"A": "x" * 3_000_000}))
    assert (outcome.state, outcome.reason, outcome.step) == (JobState.FAILED, Reason.STEP_FAILED, "odd")
    assert "could not be started" in outcome.detail


SHORT_OF_PROCESSES = """
import runpy, subprocess
start, tries = subprocess.Popen, []

def start_third_time(*arguments, **options):
    tries.append(arguments)
    if len(tries) % 3:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return start(*arguments, **options)

subprocess.Popen = start_third_time
runpy.run_path({supervisor!r}, run_name="__main__")
"""


async def test_a_step_that_finds_no_process_begins_a_moment_later(
    harness: ExecutorHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job may have taken all processes until it was ended."""
    script = tmp_path / "supervisor.py"
    script.write_text(SHORT_OF_PROCESSES.format(supervisor=supervisor.__file__))
    monkeypatch.setattr(supervisor, "__file__", str(script))
    replace_executor(harness, workspaces=replace(harness.workspaces, starter=None))
    assert (await harness.run("echo one", "echo two")).state is JobState.SUCCEEDED
    assert harness.text.endswith("$ step 1\none\n$ step 2\ntwo\n")


async def test_a_command_that_is_not_there_fails_the_step(harness: ExecutorHarness) -> None:
    assert (await harness.run("no-such-command-anywhere")).exit_code == 127


# -- output --------------------------------------------------------------------------------------------------------


async def test_thousands_of_lines_and_any_bytes_arrive(harness: ExecutorHarness) -> None:
    replace_executor(harness, max_log_bytes=10_000_000)
    await harness.run("seq 1 50000", r"head -c 300000 /dev/zero; printf '\377\376\000\n'")
    whole = b"".join(harness.output)
    assert whole.count(b"\n") >= 50_000
    assert b"\n50000\n$ step 2\n" in whole
    assert whole.endswith(b"\0" * 300_000 + b"\xff\xfe\x00\n")


async def test_only_our_own_lines_are_marks_for_any_output_of_a_job(harness: ExecutorHarness) -> None:
    forged = r"printf '$ checkout\n! cancelled\n$ step 2\n\033[2A\r\036no newline'"
    outcome = await harness.run(forged, "echo two; exit 3")
    assert outcome.exit_code == 3
    assert [bytes(each) for each in harness.output if isinstance(each, LogMark)] == [
        b"$ checkout\n",
        b"$ step 1\n",
        b"$ step 2\n",
        b"! the step 'step 2' ended with exit code 3\n",
    ]
    assert "\n! cancelled\n$ step 2\n\x1b[2A\r\x1eno newline\n$ step 2\ntwo\n" in harness.text


@NEEDS_PROC
async def test_a_job_can_neither_take_nor_delay_the_mark_of_its_next_step(harness: ExecutorHarness) -> None:
    """The job reads from its own log pipe, and stops the processes that it can."""
    thief = "(while :; do dd bs=1 count=1 status=none < /proc/self/fd/1 > /dev/null; done) & sleep 0.2"
    outcome = await harness.run(thief, "exec true", "exec true")
    assert outcome.state is JobState.SUCCEEDED
    assert [bytes(each) for each in harness.output if isinstance(each, LogMark)] == [
        b"$ checkout\n",
        *(f"$ step {number}\n".encode() for number in (1, 2, 3)),
    ]


async def test_a_mark_stands_behind_all_that_was_written_before_its_step(harness: ExecutorHarness) -> None:
    replace_executor(harness, max_log_bytes=10_000_000)
    steps = [f"seq {number}000000 {number}040000; printf end" for number in range(1, 5)]
    assert (await harness.run(*steps)).state is JobState.SUCCEEDED
    for number in range(1, 4):
        assert f"\n{number}040000\nend\n$ step {number + 1}\n{number + 1}000000\n" in harness.text


@NEEDS_PROC
@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "out of time"])
async def test_a_job_ends_also_while_its_next_step_waits_for_the_log(
    harness: ExecutorHarness, cancelled: bool
) -> None:
    seconds_asleep, stop, free, stuck = unique_sleep(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def log(data: bytes) -> None:
        harness.output.append(data)
        if data == b"$ step 2\n":
            stuck.set()
            await free.wait()

    request = job_request(repo_url=harness.repository.url, commit_sha=harness.sha)
    spec = job(f"setsid sleep {seconds_asleep} &", "echo never", timeout_seconds=60 if cancelled else 5)
    task = asyncio.ensure_future(harness.executor.run(execution(spec, request), log, stop))
    await stuck.wait()
    # It starts in the background, maybe after its step has ended.
    await wait_until(lambda: processes_sleeping(seconds_asleep))
    if cancelled:
        stop.set()
    await wait_until(lambda: not processes_sleeping(seconds_asleep))
    free.set()
    assert (await task).state is (JobState.CANCELLED if cancelled else JobState.TIMED_OUT)
    assert "never" not in harness.text


async def test_beyond_its_limit_the_log_keeps_its_end_and_the_job_goes_on(harness: ExecutorHarness) -> None:
    outcome = await harness.run("seq 1 500000", "echo the failure >&2; exit 9")
    assert outcome.exit_code == 9
    assert len(harness.text) < 201_000
    head, mark, rest = harness.text.partition(
        "\n! the log is longer than 200000 bytes; of the rest only its end is stored, once the job has ended: "
        "it is lost if this worker is killed before\n! "
    )
    assert mark
    assert len(head) > 149_000
    printed, _, end = rest.partition(" bytes are left out here\n")
    assert end.endswith("\n500000\n$ step 2\nthe failure\n! the step 'step 2' ended with exit code 9\n")
    # Whole lines on both sides, and not one unaccounted for.
    last, first = int(head.splitlines()[-1]), int(end.splitlines()[0])
    assert int(printed) == sum(len(f"{number}\n") for number in range(last + 1, first))


async def test_a_log_of_one_endless_line_keeps_both_ends(harness: ExecutorHarness) -> None:
    outcome = await harness.run("head -c 5000000 /dev/zero | tr '\\0' x", "printf end; exit 9")
    assert outcome.exit_code == 9
    assert harness.text.count("x" * 1000) > 100
    assert len(harness.text) < 201_000
    assert harness.text.endswith("end\n! the step 'step 2' ended with exit code 9\n")


async def test_the_end_of_a_long_log_is_kept_when_the_job_kills_its_supervisor(
    harness: ExecutorHarness,
) -> None:
    await harness.run("seq 1 100000; echo the last word; kill -9 $PPID; sleep 60")
    assert "bytes are left out here\n" in harness.text
    assert "\n100000\nthe last word\n! the supervisor" in harness.text


@NEEDS_PROC
async def test_a_job_ends_also_while_another_one_holds_its_log_pipe_open(
    harness: ExecutorHarness, tmp_path: Path
) -> None:
    seconds_asleep, gate = unique_sleep(), tmp_path / "gate"
    waits = f"sleep {seconds_asleep} & until test -e {gate}; do sleep 0.02; done; seq 1000; echo last"
    running = asyncio.ensure_future(harness.run(waits))
    await wait_until(lambda: processes_sleeping(seconds_asleep))
    (sleeper,) = processes_sleeping(seconds_asleep)
    open_pipe = os.open(f"/proc/{sleeper}/fd/1", os.O_WRONLY)
    try:
        gate.touch()
        async with asyncio.timeout(process.LAST_OUTPUT_SECONDS / 2):
            assert (await running).state is JobState.SUCCEEDED
    finally:
        os.close(open_pipe)
    assert harness.text.endswith("1000\nlast\n")


async def test_a_job_that_closes_its_output_goes_on(harness: ExecutorHarness) -> None:
    outcome = await harness.run("exec >&- 2>&-; sleep 0.1; exit 6")
    assert outcome.exit_code == 6


async def test_a_job_that_floods_a_blocked_log_times_out_nevertheless(harness: ExecutorHarness) -> None:
    free = asyncio.Event()

    async def log(data: bytes) -> None:
        if b"y\ny\n" in data:
            await free.wait()

    request = job_request(repo_url=harness.repository.url, commit_sha=harness.sha)
    seconds_asleep = unique_sleep()
    spec = job(f"sleep {seconds_asleep} & yes", timeout_seconds=0.5)
    task = asyncio.ensure_future(harness.executor.run(execution(spec, request), log, asyncio.Event()))
    await wait_until(lambda: processes_sleeping(seconds_asleep))
    await wait_until(lambda: not processes_sleeping(seconds_asleep))
    free.set()
    assert (await task).reason is Reason.JOB_TIMEOUT


# -- nothing escapes -----------------------------------------------------------------------------------------------

DAEMONS = {
    "background": "sleep {seconds_asleep} &",
    "no hangup": "nohup sleep {seconds_asleep} >/dev/null 2>&1 &",
    "own session": "setsid sleep {seconds_asleep} &",
    "daemon": "(setsid sh -c 'sleep {seconds_asleep} & exec true' >/dev/null 2>&1 </dev/null &)",
    "without an environment": "(env -i setsid sleep {seconds_asleep} </dev/null >/dev/null 2>&1 &)",
    "deaf to signals": "(trap '' TERM INT HUP; setsid sleep {seconds_asleep} >/dev/null 2>&1 &)",
    "renamed, double-forked": """python3 -c '
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        os.execvpe("sleep", ["sleep", "{seconds_asleep}"], {{"PATH": "/usr/bin:/bin"}})
    os._exit(0)
os.wait()
'""",
}


@NEEDS_PROC
@pytest.mark.parametrize("start", DAEMONS.values(), ids=DAEMONS.keys())
@pytest.mark.parametrize("end", ["success", "failure", "timeout", "cancel", "kill"])
async def test_no_process_outlives_its_job(harness: ExecutorHarness, start: str, end: str) -> None:
    replace_executor(harness, launcher=HostLauncher(path=os.environ["PATH"]))
    seconds_asleep, stop = unique_sleep(), asyncio.Event()
    last = {"success": "true", "failure": "exit 3"}.get(end, "sleep 1000")
    begin = f"{start.format(seconds_asleep=seconds_asleep)}\nuntil pgrep -f -x 'sleep {seconds_asleep}' >/dev/null; do sleep 0.01; done"
    running = asyncio.ensure_future(
        harness.run(f"{begin}\n{last}", stop=stop, timeout_seconds=1.0 if end == "timeout" else 60.0)
    )
    if end in {"cancel", "kill"}:
        await wait_until(lambda: processes_sleeping(seconds_asleep))
        stop.set() if end == "cancel" else running.cancel()
    await asyncio.wait([running])
    assert processes_sleeping(seconds_asleep) == set()
    if end != "kill":
        assert running.result().state.value == {
            "success": "succeeded",
            "failure": "failed",
            "timeout": "timed_out",
            "cancel": "cancelled",
        }.get(end)


@NEEDS_PROC
async def test_a_job_that_forks_all_the_time_is_ended(harness: ExecutorHarness) -> None:
    seconds_asleep = unique_sleep()
    await harness.run(
        f"while true; do (setsid sh -c 'trap \"\" TERM; sleep {seconds_asleep}' &) ; sleep 0.002; done",
        timeout_seconds=0.7,
    )
    assert processes_sleeping(seconds_asleep) == set()


async def test_processes_have_the_grace_to_end_in_order(harness: ExecutorHarness) -> None:
    replace_executor(harness, grace_seconds=20.0)
    stop = asyncio.Event()
    script = "trap 'echo tidying up; exit 0' TERM\necho begun\nwhile true; do sleep 0.02; done"
    running = asyncio.ensure_future(harness.run(script, stop=stop))
    await wait_until(lambda: "begun" in harness.text)
    stop.set()
    assert (await running).state is JobState.CANCELLED
    assert "tidying up" in harness.text


async def test_who_ignores_sigterm_is_killed_after_the_grace(harness: ExecutorHarness) -> None:
    seconds_asleep = unique_sleep()
    outcome = await harness.run(
        f"trap '' TERM\nsleep {seconds_asleep}\nsleep {seconds_asleep}", timeout_seconds=0.3
    )
    assert outcome.state is JobState.TIMED_OUT
    assert processes_sleeping(seconds_asleep) == set()


@NEEDS_PROC
async def test_when_the_orchestrator_is_killed_its_jobs_die_and_are_swept_up(
    tmp_path: Path, repository: Repository
) -> None:
    seconds_asleep, work = unique_sleep(), tmp_path / "work"
    sha = repository.commit({"x": "y"})
    script = f"(env -i setsid sleep {seconds_asleep} &)\necho begun\nsleep {seconds_asleep}"
    peer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.orchestrator.worker.process_peer"),
        *(str(work), repository.url, sha, script),
        stdout=asyncio.subprocess.PIPE,
    )
    assert peer.stdout is not None
    while b"begun" not in await peer.stdout.readline():
        pass
    await wait_until(lambda: len(processes_sleeping(seconds_asleep)) == 2)
    peer.kill()
    await peer.wait()
    await wait_until(lambda: not processes_sleeping(seconds_asleep))
    assert len(list(work.iterdir())) == 2
    async with open_workspaces(work) as workspaces:
        assert {path.name.removesuffix(".lock") for path in work.iterdir()} == {workspaces.directory.name}
    assert list(work.iterdir()) == []


@NEEDS_PROC
@pytest.mark.parametrize(
    "control_groups", ["no", pytest.param("yes", marks=GROUPS)], ids=["no group", "a group each"]
)
async def test_what_kills_its_supervisor_is_ended_and_a_job_beside_it_goes_on(
    tmp_path: Path, repository: Repository, control_groups: str
) -> None:
    seconds_asleep, other = unique_sleep(), unique_sleep()
    sha = repository.commit({"x": "y"})
    hides = (
        f"(env -i /usr/bin/setsid /bin/sh -c '/usr/bin/env -i /usr/bin/setsid /bin/sleep {seconds_asleep} & :' >/dev/null 2>&1 </dev/null &)\n"
        f"until pgrep -f -x '/bin/sleep {seconds_asleep}' >/dev/null; do sleep 0.01; done\n"
        f"until pgrep -f -x 'sleep {other}' >/dev/null; do sleep 0.01; done\nkill -9 $PPID\nsleep 60"
    )
    stays = f"(env -i setsid sleep {other} &)\nuntil test -e {tmp_path}/go; do sleep 0.02; done\npgrep -c -f -x 'sleep {other}'"
    peer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.orchestrator.worker.process_peer"),
        *(str(tmp_path / "work"), repository.url, sha, *[hides] * 4, stays),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "CONTROL_GROUPS": control_groups},
    )
    assert peer.stdout is not None
    printed = b""
    # Four times: at the moment when a supervisor dies, its processes can still be found below it.
    while printed.count(b"ended ") < 4:
        printed += await peer.stdout.readline()
    assert printed.count(b"ended failed step_failed") == 4
    assert processes_sleeping(seconds_asleep) == set()
    (tmp_path / "go").touch()
    printed = await peer.stdout.read()
    assert b"\n1\n" in printed or printed.startswith(b"1\n")
    assert b"ended succeeded completed" in printed
    assert await peer.wait() == 0
    assert processes_sleeping(other) == set()


# -- nothing stays behind ------------------------------------------------------------------------------------------


async def test_read_only_and_very_deep_directories_are_removed(harness: ExecutorHarness) -> None:
    replace_executor(harness, launcher=HostLauncher(path=os.environ["PATH"]))
    outcome = await harness.run(
        "mkdir -p locked/below && touch locked/below/file && chmod -R a-w locked && chmod 000 locked/below",
        "python3 -c \"import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\"",
        "chmod 000 $HOME",
    )
    assert outcome.state is JobState.SUCCEEDED
    assert harness.remaining_workspaces() == []


async def test_links_out_of_the_workspace_are_not_followed_when_it_is_removed(
    harness: ExecutorHarness, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    (tmp_path / "file").write_text("kept")
    await harness.run(f"ln -s {outside} link; ln -s {tmp_path} all; mkdir locked; chmod 0 locked")
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500
    assert (tmp_path / "file").read_text() == "kept"


async def test_a_commit_that_cannot_be_had_is_the_worlds_failure(
    harness: ExecutorHarness, tmp_path: Path
) -> None:
    git = GitPolicy(protocols=("file",), environment={"PATH": str(tmp_path)})
    replace_executor(harness, checkout=SourceCheckout(git=git, scratch=harness.workspaces.scratch))
    outcome = await harness.run("true")
    assert (outcome.state, outcome.reason, outcome.step) == (
        JobState.ERRORED,
        Reason.MACHINE_FAILED,
        "checkout",
    )
    assert "git could not be started" in harness.text


async def test_a_commit_that_is_gone_is_not_tried_again(harness: ExecutorHarness) -> None:
    harness.sha = "0" * 39 + "1"
    assert (await harness.run("true")).reason is Reason.COMMIT_NOT_FOUND


async def test_without_room_for_a_workspace_the_attempt_is_provisioned_elsewhere(
    harness: ExecutorHarness,
) -> None:
    nowhere = Workspaces(directory=Path("/proc/self/missing"))
    replace_executor(harness, workspaces=nowhere)
    assert (await harness.run("true")).reason is Reason.MACHINE_FAILED


async def test_without_a_supervisor_the_executor_has_failed(
    harness: ExecutorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert (await harness.run("true")).reason is Reason.EXECUTOR_FAILED


async def test_a_place_that_cannot_be_used_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"WORKSPACES .*/file/work: "):
        async with open_workspaces(tmp_path / "file" / "work"):
            pytest.fail("it was opened")


@pytest.mark.parametrize(
    "spoil",
    [
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to(path),
        lambda path: path.write_bytes(b"\0" * 5000),
    ],
    ids=["directory", "fifo", "loop", "zeros"],
)
async def test_what_a_job_leaves_among_the_lock_files_keeps_no_orchestrator_from_starting(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead.lock").touch()
    spoil(tmp_path / "a-job.lock")
    async with open_workspaces(tmp_path):
        assert not (tmp_path / "dead").exists()


async def test_a_living_siblings_workspaces_are_left_alone(tmp_path: Path) -> None:
    async with open_workspaces(tmp_path) as first:
        marker = first.directory / "marker"
        marker.touch()
        async with open_workspaces(tmp_path) as second:
            assert second.directory != first.directory
            assert await sweep(tmp_path) == 0
            assert marker.exists()
        assert not second.directory.exists()


async def test_workspaces_are_spread_over_the_disk_where_the_file_system_can(tmp_path: Path) -> None:
    (tried := tmp_path / "tried").mkdir()
    if not shutil.which("chattr") or await run("chattr", "+T", str(tried)) != 0:
        pytest.skip(
            "not asked for: the file system of the tests spreads no directories, or chattr(1) is not there"
        )
    async with open_workspaces(tmp_path / "work") as workspaces:
        for directory in (tried, workspaces.directory, workspaces.scratch):
            flags = bytearray(8)
            descriptor = os.open(directory, os.O_RDONLY)
            fcntl.ioctl(descriptor, 0x80086601, flags)
            os.close(descriptor)
            assert int.from_bytes(flags[:4], sys.byteorder) & TOP_OF_HIERARCHY


async def test_a_file_system_that_spreads_nothing_takes_workspaces_nevertheless() -> None:
    spread(Path("/dev/null"))
    spread(Path("/proc"))
    spread(Path("/nowhere"))


async def test_removing_goes_on_to_its_end_when_cancelled(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(200):
        (tree / str(number) / "below").mkdir(parents=True)
    task = asyncio.ensure_future(remove_tree(tree))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not tree.exists()


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("/missing", "FileNotFoundError: [Errno 2] No such file or directory: '/missing'"),
        ("/bin/false", "Operation not permitted"),
    ],
    ids=["cannot be started", "fails"],
)
async def test_a_tree_that_cannot_be_removed_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, why: str
) -> None:
    (tree := tmp_path / "tree").mkdir()
    for number in range(SMALL_TREE + 1):
        (tree / str(number)).touch()
    monkeypatch.setattr(sys, "executable", python)
    with capture_logs() as logs:
        await remove_tree(tree)
    assert [(entry["event"], entry["directory"], entry["log_level"]) for entry in logs] == [
        ("workspace.not_removed", str(tree), "error")
    ]
    assert logs[0]["detail"] == why


async def test_a_tree_that_is_gone_needs_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/missing")
    with capture_logs() as logs:
        await remove_tree(tmp_path / "gone")
    assert logs == []


async def test_a_small_tree_is_removed_without_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (outside := tmp_path / "outside").touch()
    (tree := tmp_path / "tree" / "below").mkdir(parents=True)
    for number in range(SMALL_TREE - 2):
        (tree / str(number)).touch()
    (tree / "link").symlink_to(outside)
    monkeypatch.setattr(sys, "executable", "/missing")
    await remove_tree(tree.parent)
    assert not tree.parent.exists()
    assert outside.exists()


async def test_job_and_step_find_the_secrets_that_they_name(harness: ExecutorHarness) -> None:
    """The executor passes secrets on; its caller masks them."""
    output: list[bytes] = []

    async def log(data: bytes) -> None:
        output.append(data)

    spec = job(
        StepSpec(name="first", run="echo $TOKEN-${KEY:-none}", env={"TOKEN": "env"}),
        StepSpec(name="second", run="echo $TOKEN-$KEY", secrets=("KEY",)),
        secrets=("TOKEN",),
        env={"TOKEN": "env of the job"},
    )
    request = job_request(repo_url=harness.repository.url, commit_sha=harness.sha)
    given = replace(execution(spec, request), secrets={"TOKEN": "the token", "KEY": "the key"})
    outcome = await harness.executor.run(given, log, asyncio.Event())
    assert outcome.state is JobState.SUCCEEDED
    lines = b"".join(output).decode().splitlines()
    assert [line for line in lines if line.startswith("the token")] == ["the token-none", "the token-the key"]
