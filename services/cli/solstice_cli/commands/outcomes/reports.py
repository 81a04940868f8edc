"""`solstice tests`: the tests of a run or job, flaky tests, and histories."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from solstice_cli import completers
from solstice_cli.api_calls import answered
from solstice_cli.commands.reading import OfBranch, OfRepository
from solstice_cli.output import display
from solstice_cli.output.identifiers import find
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.errors import ConfigurationError
from solstice_common.settings import ClientSettings
from solstice_common.values.visible_text import visible_line

HISTORY: Final = "history"
_MESSAGE: Final = 300
"""Characters of a message in a table."""


@with_settings(ClientSettings)
def show_tests(
    settings: ClientSettings,
    *,
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|JOB|history]",
            help="An id, or its beginning or end; or the word history, before the name of a test.",
            autocompletion=completers.runs_and_jobs,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of a test, for its history: whole, or its end.")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed tests.")] = False,
    slowest: Annotated[bool, typer.Option("--slowest", help="The slowest tests.")] = False,
    flaky: Annotated[
        bool, typer.Option("--flaky", help="Tests of the repository that passed and failed on one commit.")
    ] = False,
    repository: OfRepository = None,
    branch: OfBranch = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="The most lines.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the tests of a run or job: counts, and those that failed.

    --flaky lists those of the repository that passed and failed on one commit, and 'history NAME' the results of one.
    In a pipe: tab-separated, full values, no heading.
    """
    if which == HISTORY:
        if not name or not repository:
            raise ConfigurationError(
                "give the test and its repository: solstice tests history NAME --repository OWNER/NAME"
            )
        query = {"repository": repository, "branch": branch, "name": name, "limit": limit}
        found = answered(settings, lambda api: api.ask("tests/history", **query))
        print_json(found) if as_json else _print_history(found)
    elif flaky:
        found = answered(settings, lambda api: _flaky(api, which, repository, branch, limit))
        print_json(found) if as_json else _print_flaky(found)
    elif which is None:
        raise ConfigurationError(
            "name a run or a job, or ask for flaky tests: solstice tests --flaky --repository OWNER/NAME"
        )
    else:
        found = answered(settings, lambda api: _reports(api, which))
        if as_json:
            print_json(found)
        else:
            _print_reports(found, failed=failed, slowest=slowest, limit=limit)


async def _reports(api: OrchestratorClient, which: str) -> Document:
    kind, document = await find(api, which)
    return await api.ask(f"{kind}s/{document[f'{kind}_id']}/tests")


async def _flaky(
    api: OrchestratorClient, which: str | None, repository: str | None, branch: str | None, limit: int
) -> Document:
    if repository is None:
        if which is None:
            raise ConfigurationError("name the repository: solstice tests --flaky --repository OWNER/NAME")
        _, document = await find(api, which)
        run = await api.run(document["run_id"])
        repository = run["repo_full_name"] or run["repo_url"]
    return await api.ask("tests/flaky", repository=repository, branch=branch, limit=limit)


def _print_reports(found: Document, *, failed: bool, slowest: bool, limit: int) -> None:
    newest = {report["job_id"]: report for report in found["reports"]}
    now = display.now_utc()
    if slowest:
        tests = sorted(
            ((test, report) for report in newest.values() for test in report["slowest"]),
            key=lambda each: -each[0]["seconds"],
        )
        display.print_rows(
            ("TEST", "TOOK", "NAME", "JOB"),
            [
                (visible_line(test["full_name"]), f"{test['seconds']:g}", report["job"], report["job_id"])
                for test, report in tests[:limit]
            ],
            now=now,
            nothing="No test has a time.",
        )
        return
    if not failed:
        display.print_rows(
            ("NAME", "TESTS", "PASSED", "FAILED", "ERRORED", "SKIPPED", "FLAKY", "TOOK", "ATTEMPT", "JOB"),
            [_counts(report) for report in newest.values()],
            now=now,
            nothing="No tests: no job of it has read a test report ('report' of a workflow file).",
        )
    tests = [(test, report) for report in newest.values() for test in report["failed"]]
    # One table in a pipe, so that its columns mean the same on all lines.
    if failed or (tests and sys.stdout.isatty()):
        if not failed:
            typer.echo()
        display.print_rows(
            ("TEST", "STATE", "FILE", "TOOK", "NAME", "MESSAGE"),
            [_failed(test, report["job"]) for test, report in tests[:limit]],
            now=now,
            nothing="No test failed.",
        )
    for report in newest.values():
        for problem in report["problems"]:
            typer.echo(f"{report['job']}: {visible_line(problem)}", err=True)


def _counts(report: Document) -> tuple[str, ...]:
    counts = report["counts"]
    columns = ("total", "passed", "failed", "errored", "skipped", "flaky")
    return (
        report["job"],
        *(str(counts[column]) for column in columns),
        f"{counts['seconds']:g}",
        str(report["attempt"]),
        report["job_id"],
    )


def _failed(test: Document, job: str) -> tuple[str, ...]:
    return (
        visible_line(test["full_name"]),
        test["state"],
        _place(test),
        f"{test['seconds']:g}",
        job,
        visible_line(test["message"][:_MESSAGE]),
    )


def _place(test: Document) -> str:
    line = "" if test["line"] is None else f":{test['line']}"
    return f"{visible_line(test['file'])}{line}" if test["file"] else ""


def _print_flaky(found: Document) -> None:
    display.print_rows(
        ("TEST", "FAILURES", "COMMITS", "LAST", "NAME", "FILE", "RUN", "MESSAGE"),
        [
            (
                visible_line(test["name"]),
                str(test["failures"]),
                str(test["commits"]),
                test["last_at"],
                test["job"],
                _place(test),
                test["run_id"],
                visible_line(test["message"][:_MESSAGE]),
            )
            for test in found["tests"]
        ],
        now=display.now_utc(),
        nothing=f"No flaky test in the newest {found['reports']} test reports of {found['repository']}.",
    )


def _print_history(found: Document) -> None:
    results: Sequence[dict[str, Any]] = found["results"]
    if not results and found["similar"]:
        typer.echo("No test has this name. Known names that are like it:", err=True)
        for similar in found["similar"]:
            typer.echo(visible_line(similar))
        return
    display.print_rows(
        ("STATE", "AGE", "TOOK", "COMMIT", "NAME", "ATTEMPT", "RUN", "MESSAGE"),
        [
            (
                f"{each['state']}{' (flaky)' if each['flaky'] else ''}",
                each["created_at"],
                f"{each['seconds']:g}",
                each["commit_sha"],
                each["job"] if each["trusted"] else f"{each['job']} (not trusted)",
                str(each["attempt"]),
                each["run_id"],
                visible_line(each["message"][:_MESSAGE]),
            )
            for each in results
        ],
        now=display.now_utc(),
        nothing=f"No result in the newest {found['reports']} test reports: give the whole name, as 'solstice tests' prints it.",
    )
