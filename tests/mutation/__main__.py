"""`./just mutate`: changes a module once per mutant, and checks that a test fails."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from tests.mutation import choosing
from tests.mutation.changes import Mutant, mutants

JUDGED: Final = Path(__file__).with_name("judged.toml")
KILLED: Final = ("killed", "timed out")

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command()
def mutate(
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            help="Modules: solstice_orchestrator.domain.needs, needs, or a file; unless told, those that differ from --base."
        ),
    ] = None,
    base: Annotated[str, typer.Option(help="The revision that changed modules are compared with.")] = "HEAD",
    seconds: Annotated[
        float, typer.Option(help="Begin no further mutant after so long; the tests run once before that.")
    ] = 600,
    each: Annotated[int, typer.Option(help="Mutants of a module at most, drawn by lot.")] = 40,
    seed: Annotated[int, typer.Option(help="Of that lot.")] = 0,
    decisions: Annotated[
        bool, typer.Option("--decisions", help="All modules that decide and do no I/O.")
    ] = False,
    unit: Annotated[
        bool, typer.Option("--unit", help="Ask the unit tests alone: quicker, and fewer are killed.")
    ] = False,
    tests: Annotated[
        list[Path] | None,
        typer.Option("--tests", help="Ask these test files alone, not those that import it."),
    ] = None,
    at_least: Annotated[
        float, typer.Option(help="Exit code 1 when a smaller share, in percent, was killed.")
    ] = 0,
) -> None:
    """Report for each module how many mutants its tests kill, and show the survivors."""
    chosen = _chosen(modules, base, decisions=decisions)
    made = {module: _mutants_of(module, each, seed) for module in chosen}
    # Modules take turns, so that all of them share a shortage of time.
    plan = [mutant for row in zip_longest(*made.values()) for mutant in row if mutant]
    if not plan:
        sys.stderr.write("Nothing to change: no module of ours was named or differs from --base.\n")
        raise typer.Exit(2)
    found = [str(path) for path in tests] if tests else choosing.files_of_tests(chosen)
    files = [path for path in found if not unit or path.startswith("tests/unit")]
    if not files:
        sys.stderr.write("No unit or contract test imports these modules: every change would survive.\n")
        raise typer.Exit(1)
    ends = _run(plan, files, seconds)
    share = _tell(chosen, plan, ends)
    if share < at_least:
        raise typer.Exit(1)


def _chosen(words: Sequence[str] | None, base: str, *, decisions: bool) -> Sequence[str]:
    try:
        if words:
            return choosing.named(words)
        return choosing.decisions() if decisions else choosing.changed(base)
    except LookupError as unknown:
        sys.stderr.write(f"{unknown.args[0]}\n")
    except subprocess.CalledProcessError as refused:
        sys.stderr.write(f"git does not know --base {base}: {refused.stderr.strip()}\n")
    raise typer.Exit(2)


def _mutants_of(module: str, each: int, seed: int) -> Sequence[Mutant]:
    path = choosing.path_of(module)
    assert path is not None
    return mutants(module, path.read_text(), each, seed)


def _run(plan: Sequence[Mutant], files: Sequence[str], seconds: float) -> Mapping[int, str]:
    """Run the mutants that time allows; return their results by place."""
    sys.stderr.write(f"{len(plan)} mutants; {len(files)} test files run once unchanged first\n")
    with tempfile.TemporaryDirectory(prefix="solstice-mutate-") as folder:
        written, results = Path(folder, "plan.json"), Path(folder, "results")
        results.touch()
        work_order = {"mutants": [asdict(each) for each in plan], "seconds": seconds, "results": str(results)}
        written.write_text(json.dumps(work_order))
        printed, code = _pytest(["--basetemp", f"{folder}/tests", *files], written, folder)
        reported = [json.loads(line) for line in results.read_text().splitlines()]
    if not reported:
        sys.stderr.write(f"{printed}pytest ended with exit code {code}\n")
        raise typer.Exit(2)
    for test in reported[0]["failed_unchanged"]:
        sys.stderr.write(f"fails unchanged, and is not asked: {test}\n")
    return {each["number"]: each["end"] if each["tests"] else "survived" for each in reported[1:]}


def _pytest(arguments: Sequence[str], plan: Path, temporary: str) -> tuple[str, int]:
    """Run pytest; return its output and exit code.

    An interrupt stops it once, and it ends what it has begun.
    """
    plugins = ["-p", "tests.mutation.session", "-p", "no:xdist", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", *plugins, *arguments],
        cwd=choosing.ROOT,
        env={
            **os.environ,
            "SOLSTICE_MUTATION_PLAN": str(plan),
            "COVERAGE_CORE": "ctrace",
            "TMPDIR": temporary,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        printed, _ = process.communicate()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    return printed, process.returncode


def judged() -> Mapping[tuple[str, str, str], str]:
    """The survivors that were reviewed, and why they are acceptable."""
    entries = tomllib.loads(JUDGED.read_text()).get("judged", [])
    return {(each["module"], each["was"], each["becomes"]): each["why"] for each in entries}


def _tell(chosen: Iterable[str], plan: Sequence[Mutant], ends: Mapping[int, str]) -> float:
    known = judged()
    table = Table(
        "module",
        *(title for title in ("mutants", "killed", "timed out", "judged", "survived", "not tried", "%")),
    )
    for column in table.columns[1:]:
        column.justify = "right"
    survivors: list[Mutant] = []
    whole: Counter[str] = Counter()
    for module in chosen:
        counts: Counter[str] = Counter()
        for number, mutant in enumerate(plan):
            if mutant.module == module:
                end = ends.get(number, "not tried")
                if end == "survived" and (module, mutant.was, mutant.becomes) in known:
                    end = "judged"
                if end == "survived":
                    survivors.append(mutant)
                counts[end] += 1
        whole += counts
        table.add_row(module, *_row(counts))
    table.add_section()
    table.add_row("all", *_row(whole))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for mutant in sorted(survivors, key=lambda each: (each.module, each.first_line)):
        console.print(f"\n{mutant.diff}", markup=False)
    return _share(whole)


def _row(counts: Mapping[str, int]) -> Sequence[str]:
    titles = ("killed", "timed out", "judged", "survived", "not tried")
    return [
        str(sum(counts.values())),
        *(str(counts.get(each, 0)) for each in titles),
        f"{_share(counts):.0f}",
    ]


def _share(counts: Mapping[str, int]) -> float:
    """The share of killed mutants among those tried.

    A reviewed survivor counts as neither killed nor alive. Untried mutants do not count.
    """
    killed = sum(counts.get(each, 0) for each in KILLED)
    tried = killed + counts.get("survived", 0)
    if not tried:
        return 0.0 if counts.get("not tried") else 100.0
    return 100 * killed / tried


if __name__ == "__main__":
    app()
