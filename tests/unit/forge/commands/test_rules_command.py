"""`forge-integration rules check` names the rule for an event or a recorded delivery."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from solstice_common.errors import ConfigurationError
from solstice_forge.cli import app
from tests.webhooks.deliveries import deliveries

PUSH = deliveries()["gitea/push-branch"]
FORK = deliveries()["forgejo/pull-request-opened-fork"]
LABELLED = deliveries()["forgejo/pull-request-label-updated"]
RULES = """
[sources.acme]
forge = "FORGE"
secrets = ["plain:hush"]
[[sources.acme.rules]]
name = "tags"
events = ["tag"]
[[sources.acme.rules]]
name = "lakes"
repositories = ["lake/*"]
[[sources.acme.rules]]
branches = ["main"]
paths = ["src/**"]
priority = "high"
runs-on = "illumos"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "forges.toml"
    path.write_text(RULES.replace("FORGE", "forgejo"))
    return path


def run(config: Path, *options: str) -> str:
    result = CliRunner().invoke(
        app, ["rules", "check", "--forge-config", str(config), "--source", "acme", *options]
    )
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def explained(config: Path, *options: str) -> dict[str, Any]:
    explained: dict[str, Any] = json.loads(run(config, *options, "--json"))
    return explained


OTTER = ("--repository", "river/otter", "--event")
CASES = {
    "built": ((*OTTER, "push", "--branch", "main", "--path", "a", "--path", "src/b"), "built"),
    "paths": ((*OTTER, "push", "--branch", "main", "--path", "a"), "paths_not_built"),
    "branch": ((*OTTER, "push", "--branch", "next"), "branch_not_built"),
    "own change request": ((*OTTER, "change_request", "--branch", "main"), "built"),
    "fork": ((*OTTER, "change_request", "--branch", "main", "--fork"), "approval"),
}


@pytest.mark.parametrize(("options", "decision"), CASES.values(), ids=CASES)
def test_described_event_is_decided_by_the_first_rule_for_it(
    config: Path, options: tuple[str, ...], decision: str
) -> None:
    shown = explained(config, *options)
    event = options[3]
    assert shown["rules"] == [
        {"rule": "tags", "says": f"is not for the event {event}"},
        {"rule": "lakes", "says": "is not for the repository river/otter"},
        {"rule": "rule 3", "says": "decides"},
    ]
    assert decision in {shown["decision"], shown.get("reason")}
    assert (shown["source"], shown["repository"]) == ("acme", "river/otter")
    if decision == "built":
        assert shown["runs_on"] == "illumos"
        assert shown["priority"] == ("high" if event == "push" else None)


def test_rules_after_the_one_that_decides_are_not_shown(config: Path) -> None:
    assert explained(config, *OTTER, "tag")["rules"] == [{"rule": "tags", "says": "decides"}]


def test_pipe_gets_a_line_per_rule_and_value(config: Path) -> None:
    long = "a" * 120
    shown = [line.split("\t") for line in run(config, *OTTER, "push", "--branch", long).splitlines()]
    assert all(len(pair) == 2 for pair in shown)
    assert ["rule", "lakes: is not for the repository river/otter"] in shown
    assert any(long in value for _, value in shown)


def test_table_says_the_same(config: Path) -> None:
    shown = run(config, *OTTER, "push", "--branch", "next")
    assert "lakes: is not for the repository river/otter" in shown
    assert "rule 3: not for the branch next" in shown
    assert "hush" not in shown


@pytest.mark.parametrize(
    ("delivery", "decision"), [(PUSH, "paths_not_built"), (FORK, "approval"), (LABELLED, "no_new_code")]
)
def test_recorded_delivery_is_explained(config: Path, tmp_path: Path, delivery: Any, decision: str) -> None:
    config.write_text(RULES.replace("FORGE", delivery.origin))
    body, headers = tmp_path / "body.json", tmp_path / "headers.json"
    body.write_bytes(delivery.body)
    headers.write_text(json.dumps(dict(delivery.headers)))
    shown = explained(config, "--delivery", str(body), "--headers", str(headers))
    assert decision in {shown["decision"], shown.get("reason")}
    assert shown["repository"]


WRONG = {
    "nothing": ((), "--repository and --event"),
    "no event": (("--repository", "river/otter"), "--repository and --event"),
    "no headers": (("--delivery", __file__), "--headers beside it"),
    "another forge's headers": (
        ("--delivery", __file__, "--headers", "HEADERS"),
        "name is missing; are these headers of a forgejo",
    ),
}


@pytest.mark.parametrize(("options", "reported"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_explained_is_reported(
    config: Path, tmp_path: Path, options: tuple[str, ...], reported: str
) -> None:
    headers = tmp_path / "headers.json"
    headers.write_text('{"X-GitHub-Event": "push", "Content-Type": "application/json"}')
    with pytest.raises(ConfigurationError, match=reported):
        run(config, *(str(headers) if one == "HEADERS" else one for one in options))


def test_delivery_that_cannot_be_used_says_what_is_wrong_with_it(config: Path, tmp_path: Path) -> None:
    body, headers = tmp_path / "body.json", tmp_path / "headers.json"
    body.write_text("{}")
    headers.write_text('{"X-Forgejo-Event": "push", "Content-Type": "application/json"}')
    with pytest.raises(ConfigurationError, match=r"--delivery: this push cannot be used: .*ref"):
        run(config, "--delivery", str(body), "--headers", str(headers))
