"""API v1 of test reports of runs, jobs and repositories."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from solstice_orchestrator.reports.flaky import (
    AttemptReport,
    FlakyTest,
    compared_attempts,
    flaky_tests,
    passed_in,
)
from solstice_orchestrator.reports.results import digest_of, find_result
from solstice_orchestrator.reports.values import NOTHING_REPORTED, JobReport
from solstice_orchestrator.store.protocol import JobStore
from solstice_orchestrator.store.records.report_records import AttemptNumber, ReportView
from solstice_orchestrator.web.api.runs import answer, known_job
from solstice_orchestrator.web.formats.query_parameters import (
    NoParameters,
    OneTestQuery,
    RepositoryTestsQuery,
    parse_query,
)
from solstice_orchestrator.web.formats.refusals import not_found
from solstice_orchestrator.web.formats.report_json import (
    flaky_document,
    report_head,
    reports_document,
)

NEWEST: Final = 200
"""Newest reports of a repository in which its tests are looked up."""
RESULTS_AT_ONCE: Final = 8
"""Attempts whose results are in memory together; each has up to 2.6 MB."""
MAX_SIMILAR: Final = 10


T = TypeVar("T")


class ReportsApi:
    """The routes of test reports."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def routes(self) -> list[BaseRoute]:
        """Every route, relative to `/api/v1`."""
        return [
            Route("/runs/{run_id}/tests", self.run),
            Route("/jobs/{job_id}/tests", self.job),
            Route("/tests/flaky", self.flaky),
            Route("/tests/history", self.history),
        ]

    async def run(self, request: Request) -> Response:
        """The test reports of a run, by jobs and attempts.

        The counts are those of the newest attempts together.
        """
        parse_query(request, NoParameters)
        run_id = request.path_params["run_id"]
        if await self._store.run(run_id) is None:
            raise not_found("run", run_id)
        return answer(reports_document(await self._store.reports(run_id=run_id)))

    async def job(self, request: Request) -> Response:
        """The test reports of a job, by attempts, with the counts of the newest."""
        parse_query(request, NoParameters)
        job = await known_job(self._store, request)
        return answer(reports_document(await self._store.reports(job_id=job.job_id)))

    async def flaky(self, request: Request) -> Response:
        """Tests of a repository that passed and failed on one commit.

        They are looked for in its newest reports of trusted code.
        """
        query = parse_query(request, RepositoryTestsQuery)
        views = await self._store.repository_reports(query.repository, limit=NEWEST, ref=query.ref)
        found = await flaky_of(self._store, views)
        tests = [flaky_document(test) for test in found[: query.limit]]
        return answer({"repository": query.repository, "reports": len(views), "tests": tests})

    async def history(self, request: Request) -> Response:
        """The results of one test in the newest reports of a repository, newest first.

        Without any, `similar` has names that are known and contain the given one.
        """
        query = parse_query(request, OneTestQuery)
        views = await self._store.repository_reports(query.repository, limit=NEWEST, ref=query.ref)
        name = query.name
        results = await self._history(views, name)
        similar = [] if results else _similar(views, name)
        if len(similar) == 1:
            name = similar[0]
            results = await self._history(views, name)
            similar = [] if results else similar
        return answer(
            {
                "repository": query.repository,
                "name": name,
                "reports": len(views),
                "results": results[: query.limit],
                "similar": similar,
            }
        )

    async def _history(self, views: Sequence[ReportView], name: str) -> list[dict[str, Any]]:
        digest, found = digest_of(name), []
        for some in _in_groups(views):
            results = await self._store.report_results([(view.job_id, view.attempt) for view in some])
            for view in some:
                result = find_result(results.get((view.job_id, view.attempt), b""), digest)
                if result is not None:
                    message = next(
                        (each.message for each in _report(view).failed if each.full_name == name), ""
                    )
                    found.append(
                        {
                            **report_head(view),
                            "state": result.state.value,
                            "seconds": result.seconds,
                            "flaky": result.flaky,
                            "message": message,
                        }
                    )
        return found


async def flaky_of(store: JobStore, views: Sequence[ReportView]) -> Sequence[FlakyTest]:
    """Return the flaky tests in these reports, without those of untrusted code."""
    attempts = [
        AttemptReport(
            run_id=view.run_id,
            job_id=view.job_id,
            job=view.job,
            attempt=view.attempt,
            commit_sha=view.commit_sha,
            created_at=view.created_at,
            report=_report(view),
        )
        for view in views
        if view.trusted
    ]
    compared = compared_attempts(attempts)
    passed: dict[AttemptNumber, frozenset[int]] = {}
    for some in _in_groups(list(compared)):
        for attempt, results in (await store.report_results(some)).items():
            passed[attempt] = passed_in(results, compared[attempt])
    return flaky_tests(attempts, passed)


def _in_groups(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), RESULTS_AT_ONCE):
        yield values[start : start + RESULTS_AT_ONCE]


def _report(view: ReportView) -> JobReport:
    return view.report or NOTHING_REPORTED


def _similar(views: Sequence[ReportView], name: str) -> list[str]:
    """Return known names that end with the given one; else those that contain it."""
    known = {
        test.full_name: None
        for view in views
        for test in (*_report(view).failed, *_report(view).flaky, *_report(view).slowest)
    }
    ending = [each for each in known if each.endswith(name)]
    return (ending or [each for each in known if name.lower() in each.lower()])[:MAX_SIMILAR]
