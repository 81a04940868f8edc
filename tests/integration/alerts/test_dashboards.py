"""Grafana's dashboards are as they are declared, and show every metric that the services have."""

import json
import re
from collections.abc import Iterator

import pytest

from solstice_forge.metrics import Metrics as ForgeMetrics
from solstice_orchestrator.metrics import Metrics as OrchestratorMetrics
from tests.dashboards import DASHBOARDS, DIRECTORY, Dashboard

DECLARED = {
    metric.name: metric for table in (ForgeMetrics, OrchestratorMetrics) for metric in table.declared()
}
ELSEWHERE = {
    # A list in the API, or the log, says more about these than a curve.
    "solstice_signed_messages_total",
    "solstice_forge_api_jobs_total",
    "solstice_forge_status_messages_total",
    "solstice_cancels_total",
    "solstice_expected_start_error_seconds",
    "solstice_schedule_ticks_total",
    "solstice_trace_spans_total",
    "solstice_forge_trace_spans_total",
}
"""Metrics without a curve."""


def queries(dashboard: Dashboard) -> Iterator[str]:
    for panel in dashboard.panels:
        yield from panel.queries.values()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_the_file_is_what_is_declared(dashboard: Dashboard) -> None:
    assert dashboard.file.read_text(encoding="utf-8") == dashboard.text(), "./just docs writes it"


def test_there_is_no_other_file() -> None:
    assert {path.stem for path in DIRECTORY.iterdir()} == {each.name for each in DASHBOARDS}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_every_query_asks_for_a_metric_and_labels_that_a_service_has(dashboard: Dashboard) -> None:
    for panel in dashboard.panels:
        for legend, query in panel.queries.items():
            names = re.findall(r"\bsolstice_\w+", query)
            assert names or "process_" in query, query
            labels: set[str] = {"instance"}
            for name in names:
                metric = DECLARED.get(name) or DECLARED[name.removesuffix("_bucket")]
                assert (metric.type == "histogram") == name.endswith("_bucket"), query
                labels |= {*metric.labels, "le"}
            used = {label for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(", ")}
            assert used | set(re.findall(r"{{(\w+)}}", legend)) <= labels, (legend, query)


def test_every_metric_has_a_curve_or_a_reason_why_not() -> None:
    shown = {
        name.removesuffix("_bucket")
        for dashboard in DASHBOARDS
        for query in queries(dashboard)
        for name in re.findall(r"\bsolstice_\w+", query)
    }
    assert shown.isdisjoint(ELSEWHERE)
    assert shown | ELSEWHERE == set(DECLARED)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_panels_cover_the_page_without_touching(dashboard: Dashboard) -> None:
    document = json.loads(dashboard.text())
    cells = [
        (x, y)
        for panel in document["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
