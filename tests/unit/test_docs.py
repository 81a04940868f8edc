"""Links, commands, settings, events, metrics and modules on the pages exist."""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import pytest

import solstice_common.telemetry.log_events
import solstice_forge.decisions.triage
import solstice_forge.edge.webhooks
import solstice_forge.log_events
import solstice_forge.metrics
import solstice_orchestrator.log_events
import solstice_orchestrator.metrics
from solstice_common.http import access
from solstice_common.messages.states import JobState
from solstice_common.settings import ClientSettings
from solstice_common.tracing.spans import SpanType
from solstice_forge.commands.enqueue import EnqueueSettings
from solstice_forge.decisions.triage import RefusedReason
from solstice_forge.forges.events import IgnoreReason
from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.domain.reruns import RerunRefusal
from solstice_orchestrator.schedules.ticks import TickReason, TickState
from solstice_orchestrator.scheduling.workers import OrderRefusal
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.store.schedule_store import NotScheduled
from solstice_orchestrator.workflow.reader import parse_workflow
from tests.architecture_tables import PACKAGES, modules
from tests.docs_pages import (
    PAGES,
    ROOT,
    blocks,
    command_lines,
    headings,
    help_of,
    links,
    prose,
    quoted,
    recipes,
    shell_lines,
    subcommand,
    text_of,
)

SETTINGS: Final = {
    name.upper()
    for model in (ForgeSettings, OrchestratorSettings, ClientSettings, EnqueueSettings)
    for name in model.model_fields
}
FOREIGN_NAMES: Final = frozenset({"ALLOWED_HOST_LIST", "ACCESS_REFUSED"})
"""Names of Gitea's and RabbitMQ's that look like settings."""
EVENTS: Final = {
    event.value
    for module in (
        solstice_common.telemetry.log_events,
        solstice_forge.log_events,
        solstice_orchestrator.log_events,
    )
    for event in module.LogEvent
}
METRICS: Final = {
    metric.name: set(metric.labels)
    for declared in (solstice_forge.metrics, solstice_orchestrator.metrics)
    for metric in declared.Metrics.declared()
}
MODULES: Final = (
    *(f"{package.name}/{name}" for package in PACKAGES.values() for name, _ in modules(package)),
    *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/*.py")),
)
LIFE_OF_A_JOB: Final = "docs/life-of-a-job.md"
WEBHOOKS: Final = "docs/webhooks.md"
API: Final = "docs/api.md"


def code() -> Iterator[Path]:
    """Code that may read the environment: ours, the tests' servers, `./just`, and the stack."""
    for folder in ("common", "services", "tests"):
        yield from (path for path in (ROOT / folder).rglob("*.py") if path != Path(__file__))
    yield from (ROOT / "just", ROOT / "Justfile", ROOT / ".ci/run")
    yield from (
        path for path in (ROOT / "compose").glob("**/*") if path.is_file() and "secrets" not in path.parts
    )


CODE: Final = "\n".join(path.read_text("utf-8") for path in code())


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for path, anchor in links(page):
        target = (ROOT / page).parent / path if path else ROOT / page
        found = target.exists()
        if found and anchor:
            found = anchor in headings(target.resolve().relative_to(ROOT).as_posix())
        if not found:
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert broken == []


@pytest.mark.parametrize(
    "line", [pytest.param(line, id=f"{page}: {line}") for page in PAGES for line in command_lines(page)]
)
def test_command_and_its_flags_exist(line: str) -> None:
    words = shlex.split(line)
    settings = [word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)]
    program, *arguments = words[len(settings) :]
    text = help_of(program, *subcommand(arguments))
    secrets = {name for name in SETTINGS if name.endswith(("_SECRET", "_TOKEN"))}
    assert [name for name in settings if name not in text and name not in secrets] == []
    for flag in (argument.partition("=")[0] for argument in arguments if argument.startswith("-")):
        assert flag in text, f"{flag} is no flag of {program} {' '.join(subcommand(arguments))}"


@pytest.mark.parametrize("page", PAGES)
def test_what_a_shell_is_given_runs_in_the_foreground(page: str) -> None:
    """An unquoted & of a URL would end the command there."""
    for block in (*blocks(page, "sh"), *blocks(page, "console")):
        words = shlex.shlex(block, posix=True, punctuation_chars="&")
        words.whitespace_split = True
        assert {*words}.isdisjoint({"&"}), block


@pytest.mark.parametrize("page", PAGES)
def test_recipes_exist(page: str) -> None:
    recipe_lines = [line for line in (*shell_lines(page), *quoted(page)) if line.startswith("./just ")]
    assert {line.split()[1] for line in recipe_lines if re.fullmatch(r"[a-z]+", line.split()[1])} <= recipes()


@pytest.mark.parametrize("page", PAGES)
def test_settings_exist(page: str) -> None:
    named = {
        name
        for span in (*quoted(page), *blocks(page, "ini"), *shell_lines(page))
        for name in re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", span)
    }
    assert [name for name in sorted(named - SETTINGS - FOREIGN_NAMES) if name not in CODE] == []


@pytest.mark.parametrize("page", PAGES)
def test_log_events_exist(page: str) -> None:
    subjects = {event.partition(".")[0] for event in EVENTS}
    files = {"sh", "py", "md", "kdl", "json", "sqlite"}
    named = {
        span
        for span in quoted(page)
        if re.fullmatch(r"[a-z]+\.[a-z_]+", span)
        and span.partition(".")[0] in subjects
        and span.partition(".")[2] not in files
    }
    attributes = {name for span in SpanType for name in span.value.attributes}
    assert sorted(named - EVENTS - attributes) == []


@pytest.mark.parametrize("page", PAGES)
def test_metrics_and_their_labels_exist(page: str) -> None:
    packages = {path.name for path in PACKAGES.values()}
    for span in quoted(page):
        name = re.match(r"solstice_[a-z_]+", span)
        if name is None or name[0] in packages:
            continue
        assert name[0] in METRICS, span
        assert set(re.findall(r"([a-z]+)=", span)) <= METRICS[name[0]], span


@pytest.mark.parametrize("page", PAGES)
def test_modules_exist(page: str) -> None:
    named = {span for span in quoted(page) if re.fullmatch(r"[\w/-]*\.py", span)}
    named = {span.removeprefix("common/") for span in named}
    assert [
        span for span in sorted(named) if not any(f"/{each}".endswith(f"/{span}") for each in MODULES)
    ] == []


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES.keys())
def test_every_module_says_what_it_is(package: Path) -> None:
    assert [name for name, sentence in modules(package) if not sentence] == []


@pytest.mark.parametrize("page", PAGES)
def test_workflows_on_the_page_are_workflows(page: str) -> None:
    for example in blocks(page, "kdl"):
        if re.search(r"^job ", example, re.MULTILINE):
            assert parse_workflow(example.encode(), default_runs_on="linux").jobs


def test_every_page_is_in_the_index() -> None:
    indexed = {"docs/README.md", *(f"docs/{path}" for path, _ in links("docs/README.md"))}
    indexed |= {f"docs/{path}" for path, _ in links("docs/operations.md")}
    for chapter in ("decisions", "runbooks"):
        indexed |= {f"docs/{chapter}/{path}" for path, _ in links(f"docs/{chapter}/README.md")}
    assert {page for page in PAGES if page.startswith("docs/")} - indexed == set()


def test_numbers_without_a_decision_are_named() -> None:
    numbers = {int(path.name[:4]) for path in (ROOT / "docs/decisions").glob("0*.md")}
    missing = {*range(1, max(numbers))} - numbers
    # That of 71 is being written.
    assert missing - {71} == {21, 39, 40, 41}
    assert "The numbers 21 and 39 to 41 have no page" in prose("docs/decisions/README.md")


def test_readme_leads_to_every_page_of_the_documentation() -> None:
    def led_to(page: str) -> set[Path]:
        return {((ROOT / page).parent / path).resolve() for path, _ in links(page) if path}

    assert led_to("docs/README.md") - led_to("README.md") == set()


def test_webhook_page_names_every_reason_to_ignore_and_no_other() -> None:
    section = prose(WEBHOOKS).partition("### What is not built")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {
        reason.value for reason in IgnoreReason
    }


def test_webhook_page_names_every_refusal_and_no_other() -> None:
    reported = set(re.findall(r"^\| (\d{3}) \| `(\w+)` \|", prose(WEBHOOKS), re.MULTILINE))
    refused = set()
    for module in (solstice_forge.edge.webhooks, solstice_forge.decisions.triage):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refused":
                given = {word.arg: word.value for word in node.keywords}
                refused.add((str(ast.literal_eval(given["status"])), str(ast.literal_eval(given["reason"]))))
    # Those that the router and a bug bring about.
    others = {("404", "not_found"), ("405", "method_not_allowed"), ("500", "internal_error")}
    assert all(f'"{reason}"' in CODE for _, reason in others)
    assert reported == refused | others


def test_api_page_names_every_refusal_and_no_other() -> None:
    reported = set(re.findall(r"^\| (\d{3}) \| `(\w+)` \|", prose(API), re.MULTILINE))
    refused = {("401", "unknown_token"), ("401", "expired_token")}
    for path in (
        *(ROOT / "services/forge-integration/solstice_forge/api").glob("*.py"),
        Path(access.__file__),
    ):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"Refused", "Denied"}:
                given = {word.arg: word.value for word in node.keywords}
                if isinstance(given["reason"], ast.Constant):
                    refused.add(
                        (str(ast.literal_eval(given["status"])), str(ast.literal_eval(given["reason"])))
                    )
    for path in (ROOT / "services/orchestrator/solstice_orchestrator/web").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"HttpRefusal", "_refused"}:
                status, reason = node.args[:2]
                if isinstance(reason, ast.Constant):
                    refused.add((str(ast.literal_eval(status)), str(reason.value)))
    refused |= {("409", reason.value) for reason in (*RerunRefusal, *OrderRefusal, *NotScheduled)}
    # What the router, the store and a bug bring about.
    refused |= {("405", "method_not_allowed"), ("503", "unavailable"), ("500", "internal")}
    assert all(f'"{reason}"' in CODE for _, reason in refused)
    assert reported == refused


def test_the_webhook_and_api_pages_name_every_reason_of_the_list() -> None:
    documented = re.findall(r"^\| \d{3} \| `(\w+)` \|", prose(WEBHOOKS) + prose(API), re.MULTILINE)
    listed = {word for words in get_args(RefusedReason) for word in get_args(words)}
    assert "bad_signature" in listed
    assert listed - set(documented) == set()


def test_life_of_a_job_shows_every_state() -> None:
    picture = "".join(blocks("docs/life-of-a-job.md", "text"))
    assert {state.value for state in JobState if state.value not in picture} <= {"approval"}


def test_each_stop_of_a_push_has_one_link_from_the_edge_to_the_forge() -> None:
    rows = re.findall(r"^\| (\d+) \|(.*)$", text_of(LIFE_OF_A_JOB), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    modules = [re.findall(r"\]\(([^)]+)\)", row) for _, row in rows]
    assert [links for links in modules if len(links) != 1] == []
    assert [link for (link,) in modules if not (ROOT / "docs" / link).is_file()] == []
    rooms = ["/".join(Path(path).parts[3:5]) for (path,) in modules]
    assert (rooms[0], rooms[-1]) == ("solstice_forge/edge", "solstice_forge/remote")
    # Responsibility goes from one service to the other and back, once.
    services = [room.partition("/")[0] for room in rooms]
    assert [
        service for service, before in zip(services, ["", *services], strict=False) if service != before
    ] == [
        "solstice_forge",
        "solstice_orchestrator",
        "solstice_forge",
    ]


def test_reasons_for_another_attempt_are_reported() -> None:
    page = text_of("docs/life-of-a-job.md")
    retried = {Reason.AGENT_LOST, Reason.LEASE_EXPIRED, Reason.PROVISION_FAILED, Reason.CHECKOUT_FAILED}
    assert [
        reason
        for reason in (*retried, Reason.EXECUTOR_FAILED, Reason.MACHINE_FAILED)
        if f"`{reason.value}`" not in page
    ] == []


def test_what_becomes_of_a_tick_is_reported() -> None:
    (table,) = [text for text in prose("docs/schedules.md").split("## ") if text.startswith("What happens")]
    for word in (*TickState, *TickReason):
        assert f"`{word.value}`" in table


def test_what_survives_is_shown_by_tests_that_exist() -> None:
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/[^)]+)\)", text_of(LIFE_OF_A_JOB))
    assert len(named) > 10
    missing = [(name, path) for name, path in named if f"def {name}(" not in (ROOT / path).read_text("utf-8")]
    assert missing == []


def test_the_newest_release_of_the_changelog_is_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    releases = re.findall(
        r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert releases[0][0] == version
    assert releases == sorted(releases, reverse=True)
