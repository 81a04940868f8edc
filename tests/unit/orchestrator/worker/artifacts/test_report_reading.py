"""A reader of reports that fails costs its own job a remark."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from solstice_orchestrator.domain.jobs import ReportSpec
from solstice_orchestrator.reports.__main__ import PROCESSOR_SECONDS
from solstice_orchestrator.worker.artifacts.report_reading import ReportReading
from solstice_orchestrator.worker.artifacts.workspace_files import WorkspaceFiles

SPEC = ReportSpec(format="junit", path="*.xml")
PYTHON = (sys.executable, "-I", "-S", "-c")
TOO_MUCH = "*.xml: reading it takes too much time or memory"


@pytest.fixture
def workspace(tmp_path: Path) -> WorkspaceFiles:
    (tmp_path / "a.xml").write_text("<testsuite><testcase name='a'/></testsuite>")
    return WorkspaceFiles(tmp_path)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("import time; time.sleep(1000)", "*.xml: reading it takes longer than 0.3 s"),
        ("import os; os.kill(os.getpid(), 11)", TOO_MUCH),
        ("import os\nwhile True: os.write(1, bytes(2**20))", TOO_MUCH),
        ("print('no report')", "*.xml: it could not be read: JSON is malformed"),
    ],
    ids=["hangs", "dies", "writes without end", "writes something else"],
)
async def test_a_reader_that_fails_is_a_problem_of_the_report(
    workspace: WorkspaceFiles, program: str, problem: str
) -> None:
    reading = ReportReading(seconds=0.3 if "sleep" in program else 30, command=(*PYTHON, program))
    report = await reading.read(workspace, SPEC, (), asyncio.Event())
    assert report is not None
    assert report.problems[0].startswith(problem)
    assert report.counts.total == 0


async def test_a_job_that_is_asked_to_end_does_not_wait_for_its_report(workspace: WorkspaceFiles) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, stop.set)
    begun = time.monotonic()
    reading = ReportReading(command=(*PYTHON, "import time; time.sleep(1000)"))
    assert await reading.read(workspace, SPEC, (), stop) is None
    assert time.monotonic() - begun < 20


async def test_the_real_reader_needs_little_memory_for_a_large_token(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(f"<testsuite><testcase name='{'x' * 30_000_000}'/></testsuite>")
    (tmp_path / "b.xml").write_text("<testsuite><testcase name='b'/></testsuite>")
    report = await ReportReading().read(WorkspaceFiles(tmp_path), SPEC, (), asyncio.Event())
    assert report is not None
    assert (report.counts.passed, report.problems) == (2, ())
    assert PROCESSOR_SECONDS > 0
