"""`solstice why`: the reason, the position, the expected start."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from solstice_cli import completers
from solstice_cli.api_calls import answered
from solstice_cli.output import display
from solstice_cli.output.identifiers import find
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.messages.states import FINAL, JobState
from solstice_common.settings import ClientSettings
from solstice_common.values.times import duration, parse_timestamp

MAX_JOBS: Final = 20
"""The most waiting jobs of a run that are explained."""
POLL_SECONDS: Final = 2.0
_NOT_WAITING: Final = FINAL | {JobState.RUNNING}


@with_settings(ClientSettings)
def why(
    settings: ClientSettings,
    *,
    which: Annotated[
        str,
        typer.Argument(
            metavar="RUN|JOB", help="An id, or its beginning or end.", autocompletion=completers.unfinished
        ),
    ],
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print it again whenever it changes, until nothing waits.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits, and when it may start.

    It also says how many jobs go before it. For a run: each of its waiting jobs.
    """
    printed: object = None
    while True:
        answers = answered(settings, lambda api: _answers(api, which))
        if answers != printed:
            if as_json:
                print_json(answers[0] if len(answers) == 1 else {"jobs": answers})
            else:
                _print(answers, display.now_utc())
        printed = answers
        if not watch or all(answer["why"] is None for answer in answers):
            return
        time.sleep(POLL_SECONDS)


async def _answers(api: OrchestratorClient, which: str) -> Sequence[Document]:
    """Return the explanations of a job or run.

    For an unplanned run it is the run's own, else those of its waiting jobs.
    """
    kind, document = await find(api, which)
    if kind == "job":
        return [await api.why_job(document["job_id"])]
    waiting = [job["job_id"] for job in document.get("jobs", []) if job["state"] not in _NOT_WAITING]
    if not waiting:
        return [await api.why_run(document["run_id"])]
    return [await api.why_job(job_id) for job_id in waiting[:MAX_JOBS]]


def _print(answers: Sequence[Document], now: datetime) -> None:
    for number, answer in enumerate(answers):
        if number:
            typer.echo()
        display.print_facts(_facts(answer, now))
        for holder in (answer["why"] or {}).get("holders", []):
            typer.echo(f"  {_holder(holder, now)}")


def _facts(answer: Document, now: datetime) -> list[tuple[str, Any]]:
    kind = "job" if "job_id" in answer else "run"
    head = [(kind, answer[f"{kind}_id"]), ("name", answer.get("name")), ("state", answer["state"])]
    explanation = answer["why"]
    if explanation is None:
        return [*head, ("why", "it does not wait")]
    return [
        *head,
        (
            "reason",
            f"{explanation['reason']}({explanation['resource']})"
            if explanation.get("resource")
            else explanation["reason"],
        ),
        ("why", explanation["detail"]),
        ("waits", _since(explanation["since"], now)),
        ("ahead", explanation["ahead"]),
        ("until", explanation["until"]),
        ("starts", _expected(explanation["expected_start"], now)),
    ]


def _expected(expected: Document | None, now: datetime) -> str | None:
    if expected is None:
        return None
    earliest, latest = (
        duration(max(0.0, (parse_timestamp(expected[end]) - now).total_seconds()))
        for end in ("earliest", "latest")
    )
    return f"in about {earliest}" if earliest == latest else f"in {earliest} to {latest}, as an estimate"


def _since(moment: str, now: datetime) -> str:
    return duration(max(0.0, (now - parse_timestamp(moment)).total_seconds()))


def _holder(holder: Document, now: datetime) -> str:
    """`job ID test of acme/app, on WORKER for 3 min`."""
    what = f"job {holder['job_id']} {holder['name']}" if holder["job_id"] else f"run {holder['run_id']}"
    where = f", on {holder['worker_id']}" if holder["worker_id"] else ""
    since = f" for {_since(holder['started_at'], now)}" if holder["started_at"] else ""
    return f"{what} of {holder['repository']}{where}{since}"
