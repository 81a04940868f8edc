"""Every store records what the test reports of attempts say, until their jobs are removed."""

from dataclasses import replace

from msgspec import structs

from solstice_common.messages import MAX_TEST_MESSAGE, JobStatusV1
from solstice_orchestrator.reports.results import digest_of, encode_results, find_result
from solstice_orchestrator.reports.status_tests import status_tests
from solstice_orchestrator.reports.values import MAX_MESSAGE, CaseCounts, JobReport, TestCaseResult, TestState
from solstice_orchestrator.store import JobStore
from solstice_orchestrator.store.records.report_records import ReportRecord
from tests.builders import job
from tests.stores import FAILED, SUCCEEDED, ManualClock, claimed, planned

GOOD = TestCaseResult(name="good", class_name="tests.test_a", seconds=0.5)
BAD = TestCaseResult(
    name="bad \x1b[31m ä",
    class_name="tests.test_a",
    state=TestState.FAILED,
    message="m" * 4000,
    file="tests/test_a.py",
    line=7,
)
REPORT = JobReport(
    counts=CaseCounts(passed=1, failed=1, seconds=0.5),
    failed=(BAD,),
    slowest=(GOOD,),
    problems=("b.xml: the file is empty",),
    results=encode_results([GOOD, BAD]),
)
RECORD = ReportRecord(report=REPORT, commit_sha="ab" * 20, trusted=True)


async def test_the_status_of_an_end_says_what_its_tests_did(store: JobStore) -> None:
    await planned(store, job("true", name="test", retries=1))
    tests = status_tests(REPORT)
    for outcome in (FAILED, SUCCEEDED):
        (claim,) = await claimed(store)
        assert await store.finish(claim.key, replace(outcome, tests=tests))
    found = [JobStatusV1.decode(message.body) for message in await store.outbox(100)]
    assert all(
        status.encode() == message.body
        for status, message in zip(found, await store.outbox(100), strict=True)
    )
    again, ended = [status for status in found if status.tests is not None]
    assert (again.state, ended.state) == ("waiting", "succeeded")
    assert (again.description or "").startswith("1 of 2 tests failed. ")
    assert ended.tests is not None
    (failure,) = ended.tests.failures
    assert (failure.name, failure.file, failure.line) == (BAD.full_name, BAD.file, BAD.line)
    assert failure.message == BAD.message[:MAX_TEST_MESSAGE]


async def test_a_report_of_each_attempt_is_read_by_run_job_and_repository(
    store: JobStore, clock: ManualClock
) -> None:
    run_id = await planned(store, job("true", name="test", retries=1), job("true", name="other"))
    first, other = await claimed(store)
    assert await store.record_report(first.key.job_id, first.key.number, replace(RECORD, report=JobReport()))
    assert await store.record_report(first.key.job_id, first.key.number, RECORD)
    assert await store.finish(first.key, FAILED)
    assert not await store.record_report(first.key.job_id, first.key.number, RECORD)
    clock.forward(5.0)
    (second,) = await claimed(store)
    passed = replace(RECORD, report=JobReport(counts=CaseCounts(passed=2)), trusted=False)
    assert await store.record_report(second.key.job_id, second.key.number, passed)
    assert await store.finish(second.key, SUCCEEDED)

    one, two = await store.reports(run_id=run_id)
    assert (one.run_id, one.job_id, one.job, one.attempt) == (run_id, first.key.job_id, "test", 1)
    assert (one.repository, one.commit_sha, one.trusted) == ("lantern/harbour", "ab" * 20, True)
    assert one.report == structs.replace(
        REPORT, failed=(structs.replace(BAD, message="m" * MAX_MESSAGE),), results=b""
    )
    assert (one.counts, two.counts) == (REPORT.counts, CaseCounts(passed=2))
    assert (two.attempt, two.trusted, two.created_at - one.created_at) == (2, False, 5.0)
    assert await store.reports(job_id=first.key.job_id) == [one, two]
    assert await store.reports(job_id=other.key.job_id) == []
    assert [each.report for each in await store.reports(run_id=run_id, details=False)] == [None, None]

    assert await store.repository_reports(one.repository, limit=9) == [two, one]
    assert await store.repository_reports(one.repository, limit=1) == [two]
    assert await store.repository_reports("lantern/other", limit=9) == []
    assert await store.repository_reports(one.repository, limit=9, ref="refs/heads/none") == []
    results = await store.report_results([(first.key.job_id, 1), (first.key.job_id, 2), ("none", 1)])
    assert results == {(first.key.job_id, 1): REPORT.results, (first.key.job_id, 2): b""}
    found = find_result(results[first.key.job_id, 1], digest_of(BAD.full_name))
    assert found is not None
    assert found.state is TestState.FAILED
