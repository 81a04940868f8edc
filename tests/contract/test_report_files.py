"""Every executor lets test reports be read, also when a step failed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Reason, ReportSpec
from solstice_orchestrator.reports.status_tests import status_tests
from solstice_orchestrator.reports.values import CaseCounts
from tests.executor_setups import ExecutorSetup, backend_for, open_executor

WRITE = """
mkdir -p build/deep out
cat >build/deep/a.xml <<EOF
<testsuite name="s"><testcase name="good" time="0.5"/><testcase name="bad"><failure message="no">
  at f ($SOLSTICE_WORKSPACE/src/a.js:7:3)</failure></testcase></testsuite>
EOF
echo '<html/>' >build/b.xml
ln -s /etc/passwd out/c.xml
exit 3
"""
REPORTS = tuple(
    ReportSpec(format="junit", path=path, required=True)
    for path in ("build/**/*.xml", "out/*.xml", "none/*.xml")
)


@pytest.fixture(params=["process", "podman"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ExecutorSetup]:
    async with open_executor(request.param, tmp_path, backend_for(request.param, request)) as opened:
        yield opened


async def test_reports_of_a_failed_job_are_read_and_what_is_wrong_is_remarked(subject: ExecutorSetup) -> None:
    outcome, output = await subject.run(WRITE, reports=REPORTS)
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, Reason.STEP_FAILED, 3)
    (record,) = subject.reported
    assert (record.commit_sha, record.trusted) == (subject.request.commit_sha, True)
    report = record.report
    assert report.counts == CaseCounts(passed=1, failed=1, seconds=0.5)
    assert outcome.tests == status_tests(report)
    assert [(each.name, each.file, each.line) for each in report.failed] == [("bad", "src/a.js", 7)]
    assert report.problems == (
        "build/b.xml: line 1: it begins with <html>, and JUnit XML with <testsuites> or <testsuite>",
        "out/*.xml: out/c.xml is a symbolic link, and plain files alone are taken",
        "none/*.xml: no file of the workspace fits 'none/*.xml'",
    )
    assert all(f"test report: {problem}" in output for problem in report.problems)
    assert "test report: 2 tests, 1 failed" in output


async def test_a_job_that_requires_a_report_fails_without_one(subject: ExecutorSetup) -> None:
    outcome, _ = await subject.run("true", reports=REPORTS[2:])
    assert (outcome.state, outcome.reason) == (JobState.FAILED, Reason.REPORT_UNUSABLE)
    assert outcome.detail == "test report none/*.xml: no file of the workspace fits 'none/*.xml'"
