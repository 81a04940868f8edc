"""Prints answers for a terminal, for a pipe, or as JSON.

A terminal gets tables and colours, a pipe tab-separated whole values.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from solstice_common.cli import output
from solstice_common.cli.api_client import Document
from solstice_common.cli.tables import TableLayout, print_table
from solstice_common.messages.states import FINAL, JobState
from solstice_common.values.times import age, ahead, duration, parse_timestamp

SHORT_SHA: Final = 10
SHORT_ID: Final = 8
"""Characters of a shown id, from its end: ids begin with the time, so ids of one run begin alike."""

STATE_STYLE: Final[Mapping[str, str]] = {
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "bold red",
    JobState.ERRORED: "bold magenta",
    JobState.TIMED_OUT: "red",
    JobState.CANCELLED: "yellow",
    JobState.SKIPPED: "dim",
    JobState.RUNNING: "bold cyan",
    "active": "green",
    "paused": "yellow",
    "draining": "yellow",
    "quarantined": "red",
    "lost": "bold red",
    "ended": "dim",
}

LAYOUT: Final = TableLayout(
    folded=frozenset(
        {
            *("REPOSITORY", "NAME", "ARTIFACT", "REF", "BRANCH", "DETAIL", "IMAGE", "REASON", "HELD BACK"),
            *("KEY", "SCOPE"),
            *("SCOPES", "SOURCES", "REPOSITORIES", "RIGHTS"),
            *("TEST", "FILE", "MESSAGE"),
        }
    ),
    dropped_first=(
        *(
            "SYSTEM",
            "DIGEST",
            "FILES",
            "SKIPPED",
            "FLAKY",
            "COMMITS",
            "PRESSURE",
            "VERSION",
            "EVENT",
            "RUNS ON",
            "ZONE",
            "STEP",
            "TICKS",
            "DELAYED",
            "HELD BACK",
            "LAST",
            "AGE",
        ),
        *(
            "REF",
            "ATTEMPT",
            "HOST",
            "SEEN",
            "OLDEST",
            "WORK",
            "TOOK",
            "COMMIT",
            "BRANCH",
            "EXIT",
            "WORKER",
        ),
        *("MESSAGE", "FILE", "ERRORED"),
        *("REQUEST", "PRIORITY", "DETAIL", "QUEUE", "REASON", "REPOSITORY", "CRON", "NEXT", "NAME", "RUN"),
        *("USED", "BYTES", "SCOPE"),
    ),
)

MORE: Final = "There are more: --all, or --limit N"


def print_runs(runs: Sequence[Document], *, now: datetime, more: bool = False) -> None:
    """Print one line per run, newest first."""
    print_rows(
        ("RUN", "STATE", "REPOSITORY", "COMMIT", "REF", "EVENT", "AGE", "TOOK"),
        [
            (
                run["run_id"],
                run["state"],
                run.get("repo_full_name") or run["repo_url"],
                run["commit_sha"],
                run.get("ref") or "",
                run.get("event") or run["source"],
                run["created_at"],
                _seconds(run, now),
            )
            for run in runs
        ],
        now=now,
        nothing="No runs yet. Push to a repository whose webhook comes here, or try 'solstice enqueue'.",
        more=MORE if more else "",
    )


def print_jobs(
    jobs: Sequence[Document], *, now: datetime, nothing: str = "No jobs.", more: bool = False
) -> None:
    """Print one line per job, in the order given."""
    print_rows(
        ("JOB", "STATE", "NAME", "RUN", "RUNS ON", "ATTEMPT", "REASON", "AGE", "TOOK"),
        [
            (
                job["job_id"],
                job["state"],
                job["name"],
                job["run_id"],
                job["runs_on"],
                str(job["attempt"]),
                job["reason"],
                job["created_at"],
                _seconds(job, now),
            )
            for job in jobs
        ],
        now=now,
        nothing=nothing,
        more=MORE if more else "",
    )


def print_watermarks(
    watermarks: Sequence[Document], *, now: datetime, more: bool = False, behind: bool = False
) -> None:
    """Print one line per ref: its watermark, and what came behind it."""
    print_rows(
        ("REPOSITORY", "REF", "HANDLED", "STATE", "COMMIT", "PENDING", "LAG"),
        [
            (
                watermark["repository"],
                watermark["ref"],
                (watermark["handled"] or {}).get("run_id", ""),
                (watermark["handled"] or {}).get("state", ""),
                (watermark["handled"] or {}).get("commit_sha", ""),
                str(watermark["pending"]),
                str(watermark["lag_seconds"]),
            )
            for watermark in watermarks
        ],
        now=now,
        nothing="No ref has a pending push behind its watermark." if behind else "No pushes yet.",
        more=MORE if more else "",
    )


def print_artifacts(artifacts: Sequence[Document], *, now: datetime) -> None:
    """Print one line per artifact, in the order given."""
    print_rows(
        ("ARTIFACT", "NAME", "BYTES", "FILES", "EXPIRES", "ATTEMPT", "DIGEST", "JOB"),
        [
            (
                artifact["name"],
                artifact["job"],
                str(artifact["size"]),
                str(artifact["files"]),
                artifact["expires_at"],
                str(artifact["attempt"]),
                artifact["digest"],
                artifact["job_id"],
            )
            for artifact in artifacts
        ],
        now=now,
        nothing="No artifacts: no job of it handed one out, or their time is over.",
    )


def print_caches(caches: Sequence[Document], *, now: datetime) -> None:
    """Print one line per cache, in the order given."""
    columns = ("cache_id", "key", "repository", "scope", "size", "files", "used_at", "system", "digest")
    print_rows(
        ("CACHE", "KEY", "REPOSITORY", "SCOPE", "BYTES", "FILES", "USED", "SYSTEM", "DIGEST"),
        [tuple(str(cache[column]) for column in columns) for cache in caches],
        now=now,
        nothing="No caches.",
    )


def print_attempts(attempts: Sequence[Document], *, now: datetime, state: str) -> None:
    """Print one line per attempt, in the order given, of a job in that state.

    Images are shown where there are any.
    """
    with_images = any(attempt.get("image") for attempt in attempts)
    print_rows(
        (
            *("ATTEMPT", "STATE", "REASON", "WORKER", "EXIT", "STEP", "AGE", "TOOK", "DETAIL"),
            *(("IMAGE",) if with_images else ()),
        ),
        [
            (
                str(attempt["number"]),
                attempt["state"],
                attempt["reason"],
                attempt["worker_id"],
                "" if attempt["exit_code"] is None else str(attempt["exit_code"]),
                attempt["step"] or "",
                attempt["started_at"],
                _seconds(attempt, now),
                attempt["detail"],
                *((attempt.get("image", ""),) if with_images else ()),
            )
            for attempt in attempts
        ],
        now=now,
        nothing=f"No attempts: the job is {state}."
        if state in FINAL
        else "No attempts yet: the job waits ('solstice why').",
    )


def print_schedules(schedules: Sequence[Document], *, now: datetime) -> None:
    """Print one line per schedule, in the order given."""
    print_rows(
        ("SCHEDULE", "STATE", "CRON", "ZONE", "REPOSITORY", "BRANCH", "NEXT", "LAST", "RUN"),
        [
            (
                schedule["name"],
                "paused" if schedule["paused"] else _of_tick(schedule["last"]) or "new",
                schedule["cron"],
                schedule["timezone"],
                schedule.get("repo_full_name") or schedule["repo_url"],
                schedule["branch"],
                schedule["next_at"] or "",
                (schedule["last"] or {}).get("tick_at") or "",
                (schedule["last"] or {}).get("run_id") or "",
            )
            for schedule in schedules
        ],
        now=now,
        nothing="No schedules. Add one with 'solstice schedules add'.",
    )


def print_ticks(ticks: Sequence[Document], *, now: datetime) -> None:
    """Print one line per tick, in the order given."""
    print_rows(
        ("TICK", "STATE", "REASON", "TICKS", "RUN", "COMMIT", "DETAIL"),
        [
            (
                tick["tick_at"],
                _of_tick(tick),
                tick["reason"],
                str(tick["count"]),
                tick["run_id"] or "",
                tick["commit_sha"] or "",
                tick["detail"],
            )
            for tick in ticks
        ],
        now=now,
        nothing="No ticks yet.",
    )


def _of_tick(tick: Document | None) -> str:
    """Return the state of its run, once it has one."""
    return "" if tick is None else str(tick["run_state"] or tick["state"])


def print_tokens(tokens: Sequence[Document], *, now: datetime) -> None:
    """Print one line per token, in the order given."""
    print_rows(
        ("TOKEN", "SCOPES", "AGE", "EXPIRES"),
        [
            (token["name"], ",".join(token["scopes"]), token["created_at"], token["expires_at"] or "never")
            for token in tokens
        ],
        now=now,
        nothing="No tokens: the API and pages answer this machine alone. 'solstice token create' makes one.",
    )


def print_keys(keys: Sequence[Document], *, now: datetime) -> None:
    """Print one line per key, in the order given."""
    print_rows(
        ("KEY", "SOURCES", "REPOSITORIES", "RIGHTS", "AGE"),
        [
            (
                key["name"],
                ",".join(key["sources"]),
                ",".join(key["repositories"]),
                ",".join(key["rights"]) or "none",
                key["created_at"],
            )
            for key in keys
        ],
        now=now,
        nothing="No keys: 'solstice keys create' makes one.",
    )


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Names and values, one pair per line.

    Names without a value are left out, and a state has its colour.
    """
    output.print_facts(
        [
            (name, Text.from_markup(styled_state(str(value))) if name == "state" else value)
            for name, value in facts
        ]
    )


def styled_state(state: str) -> str:
    """Return the state in its colour, as rich's markup."""
    style = STATE_STYLE.get(state)
    return f"[{style}]{state}[/{style}]" if style else escape(state)


def now_utc() -> datetime:
    """Return the clock of these commands."""
    return datetime.now(UTC)


def _seconds(document: Document, now: datetime) -> str:
    """How long it ran, or has been running, in seconds; empty when it never started."""
    if not document.get("started_at"):
        return ""
    end = parse_timestamp(document["finished_at"]) if document.get("finished_at") else now
    return f"{max(0.0, (end - parse_timestamp(document['started_at'])).total_seconds()):.1f}"


def print_rows(
    columns: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    *,
    now: datetime,
    nothing: str,
    more: str = "",
) -> None:
    """Rows under their columns; in a pipe the whole values without columns.

    `nothing` says what a person may do when there are no rows; in a pipe on standard error.
    """
    console = Console()
    if not rows:
        typer.echo(nothing, err=not console.is_terminal)
        return
    if not console.is_terminal:
        output.print_rows(rows)
        return
    cells = [
        [_cell(column, output.one_line(value), now) for column, value in zip(columns, row, strict=True)]
        for row in rows
    ]
    print_table(console, columns, cells, LAYOUT)
    if more:
        console.print(more, style="dim", markup=False)


def _cell(column: str, value: str, now: datetime) -> str:
    """Return a value as a person wants to read it, as rich's markup."""
    match column:
        case "RUN" | "JOB" | "HANDLED":
            return escape(value[-SHORT_ID:])
        case "COMMIT":
            return escape(value[:SHORT_SHA])
        case "STATE":
            return styled_state(value)
        case "AGE" | "SEEN" | "LAST" | "TICK" | "USED":
            return age((now - parse_timestamp(value)).total_seconds()) if value else ""
        case "NEXT":
            value = _ahead(value, now, over="now")
        case "EXPIRES":
            value = _ahead(value, now, over="expired")
        case "TOOK" | "WORK" | "OLDEST" | "LAG":
            return duration(float(value)) if value else ""
    return escape(value.removeprefix("refs/heads/").removeprefix("refs/") if column == "REF" else value)


def _ahead(moment: str, now: datetime, *, over: str) -> str:
    """Return the time until then, or `over`; anything that is no time unchanged."""
    try:
        left = (parse_timestamp(moment) - now).total_seconds()
    except ValueError:
        return moment
    return ahead(left) if left > 0 else over
