"""Every alert fires and resolves, asks for existing metrics, and has a runbook."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from solstice_forge.metrics import Metrics as ForgeMetrics
from solstice_orchestrator.domain.jobs import INFRASTRUCTURE
from solstice_orchestrator.metrics import Metrics as OrchestratorMetrics
from tests.servers.prometheus import ALERTS, COMPOSE, alert_rules, promtool

CASES: Final = Path(__file__).with_name("alert_cases.yaml")
ROOT: Final = Path(__file__).parents[3]
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
RULES: Final = alert_rules()
HEADINGS: Final = ("## Meaning", "## Check", "## Remedy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases beside the alerts, whose runbooks are left out: another test reads those."""
    made = tmp_path_factory.mktemp("alerts")
    document = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    for group in document["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]["runbook"]
    (made / "alerts.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (made / CASES.name).write_text(CASES.read_text(encoding="utf-8"), encoding="utf-8")
    return made


@cache
def moments() -> Sequence[tuple[str, int, bool]]:
    """Return the moments of the cases: an alert, its minute and whether it fires."""
    return [
        (each["alertname"], int(each["eval_time"].removesuffix("m")), bool(each["exp_alerts"]))
        for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
        for each in case["alert_rule_test"]
    ]


def test_every_alert_fires_with_its_sentence_and_resolves(folder: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", CASES.name, cwd=folder)


@pytest.mark.parametrize("alert", sorted(rule["alert"] for rule in RULES))
def test_the_cases_show_an_alert_firing_and_resolved_after_that(alert: str) -> None:
    fired = [at for name, at, fires in moments() if name == alert and fires]
    quiet = [at for name, at, fires in moments() if name == alert and not fires]
    assert fired, alert
    assert max(quiet, default=0) > min(fired), alert


def test_a_sentence_that_is_not_as_expected_fails_the_cases(folder: Path) -> None:
    changed = CASES.read_text(encoding="utf-8").replace("quay lost leases", "quay kept leases")
    (folder / "changed.yaml").write_text(changed, encoding="utf-8")
    with pytest.raises(AssertionError, match="SolsticeLeasesLost"):
        promtool("test", "rules", "changed.yaml", cwd=folder)


def test_prometheus_accepts_the_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", COMPOSE / "prometheus.yaml")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_that_a_service_has(rule: dict[str, Any]) -> None:
    declared = {
        metric.name: metric for table in (ForgeMetrics, OrchestratorMetrics) for metric in table.declared()
    }
    for name in re.findall(r"\bsolstice_\w+", rule["expr"]):
        metric = declared.get(name) or declared[name.removesuffix("_bucket")]
        assert (metric.type == "histogram") == name.endswith("_bucket"), name
        for labels in re.findall(rf"\b{name}{{([^}}]*)}}", rule["expr"]):
            assert {pair.partition("=")[0] for pair in labels.split(",")} <= set(metric.labels), name


def test_failures_of_the_infrastructure_are_those_of_the_code() -> None:
    (rule,) = (each for each in RULES if each["alert"] == "SolsticeFailuresOfInfrastructure")
    (reasons,) = re.findall(r'reason=~"([^"]*)"', rule["expr"])
    assert set(reasons.split("|")) == {reason.value for reason in INFRASTRUCTURE}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_and_a_page_with_its_meaning_check_and_remedy(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"page", "ticket"}
    page = (ROOT / rule["annotations"]["runbook"]).read_text(encoding="utf-8")
    assert f"`{rule['alert']}`" in page
    assert [line for line in page.splitlines() if line.startswith("## ")] == list(HEADINGS)


def test_every_page_is_that_of_an_alert() -> None:
    pages = {f"docs/runbooks/{page.name}" for page in RUNBOOKS.glob("*.md") if page.name != "README.md"}
    assert pages == {rule["annotations"]["runbook"] for rule in RULES}
