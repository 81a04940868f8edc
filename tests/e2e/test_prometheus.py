"""A real Prometheus scrapes real services; alerts fire there and resolve."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.dashboards import DASHBOARDS
from tests.polling import wait_until
from tests.servers.prometheus import ALERTS, Prometheus, alert_rules
from tests.servers.solstice_up import repository, solstice_up

ALL_QUERIES = frozenset(
    query.replace("$__rate_interval", "1m")
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for query in panel.queries.values()
)


def host(url: str) -> str:
    """The host and port of an address."""
    return urlsplit(url).netloc


def healths(prometheus: Prometheus) -> set[str]:
    """How the last scrapes of the services ended."""
    return {target["health"] for target in prometheus.api("targets")["activeTargets"]}


@pytest.mark.timeout(180)
async def test_alerts_fire_and_resolve_as_the_services_do(tmp_path: Path) -> None:
    sources = repository(
        tmp_path / "repository", {".solstice/workflow.kdl": 'job "port" runs-on="riscv" { step run="true" }'}
    )
    with solstice_up(tmp_path / "state") as up:
        targets = {"solstice-orchestrator": host(up.page), "solstice-forge-integration": host(up.webhooks)}
        with Prometheus(targets) as prometheus:
            rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
            assert {rule["name"] for rule in rules} == {rule["alert"] for rule in alert_rules()}, ALERTS
            await wait_until(lambda: healths(prometheus) == {"up"})
            up.solstice("enqueue", "--repo-url", sources.folder)
            await wait_until(lambda: "SolsticeNoWorkerForLabel" in prometheus.firing())
            assert prometheus.values("sum by (state) (solstice_jobs)") == {"waiting": 1.0}
            for query in ALL_QUERIES:
                # Raises for a query that Prometheus does not understand.
                prometheus.api("query", query=query)
            assert "riscv" in prometheus.firing()["SolsticeNoWorkerForLabel"]
            up.solstice("cancel", up.api("/runs")["runs"][0]["run_id"])
            await wait_until(lambda: "SolsticeNoWorkerForLabel" not in prometheus.firing())
            assert prometheus.firing().keys() <= {"SolsticeBrokerDegraded"}
            up.process.terminate()
            up.process.wait()
            await wait_until(lambda: "SolsticeServiceDown" in prometheus.firing())
