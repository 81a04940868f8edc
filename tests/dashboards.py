"""Writes the dashboards for Grafana, from the panels that are declared here.

`./just docs` writes them; a test holds the files to the declarations, and every query to the metrics of the services. The
form is that of grafana.com/docs/grafana/latest/visualizations/dashboards/build-dashboards/view-dashboard-json-model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parents[1] / "compose" / "grafana" / "dashboards"
WIDTH: Final = 24
"""The columns of Grafana's grid."""
HEIGHT: Final = 8
IN_A_ROW: Final = 3
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves over time. `queries` are PromQL by the legend of their curves."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page of panels."""

    name: str
    title: str
    panels: Sequence[Panel] = field(default=())

    @property
    def file(self) -> Path:
        return DIRECTORY / f"{self.name}.json"

    def document(self) -> dict[str, Any]:
        """Return it as Grafana reads it."""
        return {
            "uid": f"solstice-{self.name}",
            "title": f"Solstice CI: {self.title}",
            "tags": ["solstice-ci"],
            "schemaVersion": 39,
            "timezone": "browser",
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "links": [
                {"type": "dashboards", "tags": ["solstice-ci"], "title": "Solstice CI", "asDropdown": True}
            ],
            "templating": {
                "list": [
                    {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
                ]
            },
            "panels": [_panel(number, panel) for number, panel in enumerate(self.panels)],
        }

    def text(self) -> str:
        return json.dumps(self.document(), indent=2, ensure_ascii=False) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    width = WIDTH // IN_A_ROW
    row, column = divmod(number, IN_A_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": column * width, "y": row * HEIGHT, "w": width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def rate(metric: str, *labels: str, where: str = "") -> str:
    """The increase of a counter in a second, by labels."""
    inner = f"rate({metric}{{{where}}}[$__rate_interval])" if where else f"rate({metric}[$__rate_interval])"
    return f"sum by ({', '.join(labels)}) ({inner})" if labels else f"sum({inner})"


def quantiles(metric: str, *labels: str) -> dict[str, str]:
    """The median and the slowest twentieth of a histogram, by labels."""
    by = ", ".join((*labels, "le"))
    legend = "".join(f" {{{{{label}}}}}" for label in labels)
    return {
        f"{name}{legend}": f"histogram_quantile({part}, sum by ({by}) (rate({metric}_bucket[$__rate_interval])))"
        for name, part in (("p50", 0.5), ("p95", 0.95))
    }


def once(metric: str, *labels: str) -> str:
    """A gauge that every orchestrator reports alike."""
    return f"max by ({', '.join(labels)}) ({metric})" if labels else f"max({metric})"


DASHBOARDS: Final = (
    Dashboard(
        name="line",
        title="the line",
        panels=(
            Panel(
                title="Webhooks by decision",
                unit="reqps",
                queries={"{{decision}}": rate("solstice_forge_deliveries_total", "decision")},
            ),
            Panel(
                title="Requests to the broker",
                unit="reqps",
                queries={"{{status}}": rate("solstice_forge_publishes_total", "status")},
            ),
            Panel(
                title="Requests taken",
                unit="reqps",
                queries={"{{verdict}}": rate("solstice_requests_total", "verdict")},
            ),
            Panel(
                title="Webhook to its answer",
                unit="s",
                queries=quantiles("solstice_forge_webhook_seconds"),
            ),
            Panel(title="Job to its start", unit="s", queries=quantiles("solstice_job_wait_seconds")),
            Panel(title="Start to end", unit="s", queries=quantiles("solstice_job_run_seconds")),
            Panel(
                title="Attempts by their end",
                unit="ops",
                queries={"{{state}} {{reason}}": rate("solstice_attempts_finished_total", "state", "reason")},
            ),
            Panel(
                title="Statuses to forges",
                unit="reqps",
                queries={"{{outcome}}": rate("solstice_forge_status_calls_total", "outcome")},
            ),
            Panel(
                title="What is under way",
                about="Each of these falls to zero by itself on a healthy line.",
                queries={
                    "inbox": "sum(solstice_forge_inbox_backlog)",
                    "queue": "max(solstice_forge_queue_ready)",
                    "statuses": "sum(solstice_forge_statuses_pending)",
                },
            ),
        ),
    ),
    Dashboard(
        name="queues",
        title="queues and waits",
        panels=(
            Panel(
                title="Jobs by state",
                queries={"{{state}}": f"sum by (state) ({once('solstice_jobs', 'state', 'label')})"},
            ),
            Panel(
                title="Jobs that wait, by class",
                queries={"{{priority}}": once("solstice_jobs_waiting", "priority")},
            ),
            Panel(
                title="The longest wait, by class",
                unit="s",
                queries={"{{priority}}": once("solstice_jobs_waiting_oldest_seconds", "priority")},
            ),
            Panel(
                title="Waits before the start, by label",
                unit="s",
                queries=quantiles("solstice_job_wait_seconds", "label"),
            ),
            Panel(
                title="Waits before the start, by class",
                unit="s",
                queries=quantiles("solstice_job_wait_seconds", "priority"),
            ),
            Panel(
                title="Refs behind their newest push",
                queries={"refs": once("solstice_refs_behind")},
            ),
            Panel(
                title="The largest lag of a ref",
                unit="s",
                about="For how long a push is pending behind the newest one that has ended: `solstice watermarks --behind`.",
                queries={"lag": once("solstice_watermark_lag_seconds")},
            ),
            Panel(
                title="Jobs without a worker for their label",
                queries={"{{label}}": once("solstice_jobs_unserved", "label")},
            ),
            Panel(
                title="Starts against their forecast",
                unit="ops",
                queries={"{{met}}": rate("solstice_expected_starts_total", "met")},
            ),
            Panel(
                title="Backlog and delayed runs",
                queries={
                    "backlog": once("solstice_backlog"),
                    "delayed": once("solstice_delayed_runs"),
                    "intake paused": once("solstice_intake_paused"),
                },
            ),
            Panel(
                title="The backlog at which intake pauses",
                about="MAX_BACKLOG, or less by INTAKE_SECONDS at the present speed of the workers.",
                queries={"limit": once("solstice_intake_limit")},
            ),
            Panel(
                title="Schedules: lateness",
                unit="s",
                queries=quantiles("solstice_schedule_tick_lateness_seconds"),
            ),
        ),
    ),
    Dashboard(
        name="workers",
        title="workers",
        panels=(
            Panel(
                title="Slots and running jobs",
                queries={
                    "slots": "sum(solstice_slots)",
                    "running": f"""sum({once('solstice_jobs{state="running"}', "label")})""",
                },
            ),
            Panel(title="Workers by state", queries={"{{state}}": once("solstice_workers", "state")}),
            Panel(
                title="Workers that lack a resource",
                queries={"{{instance}} {{resource}}": "solstice_governor_refusing == 1"},
            ),
            Panel(
                title="Jobs by label: from start to end",
                unit="s",
                queries=quantiles("solstice_job_run_seconds", "label"),
            ),
            Panel(
                title="Preparing a container or VM, by label",
                unit="s",
                queries=quantiles("solstice_job_provisioning_seconds", "label"),
            ),
            Panel(
                title="Retries by label and class",
                unit="ops",
                queries={"{{label}} {{priority}}": rate("solstice_retries_total", "label", "priority")},
            ),
            Panel(
                title="Leases",
                unit="ops",
                queries={
                    "renewed": rate("solstice_lease_renewals_total"),
                    "lost": rate("solstice_leases_lost_total"),
                },
            ),
            Panel(
                title="Quarantines",
                unit="ops",
                queries={"{{instance}}": rate("solstice_worker_quarantines_total", "instance")},
            ),
            Panel(
                title="Jobs checked out at once, at most",
                about="GOVERNOR's `starting` and the slots, or less by START_SECONDS.",
                queries={"{{instance}}": "solstice_starts_at_once"},
            ),
            Panel(
                title="Requests of strangers' jobs for hosts outside",
                about="UNTRUSTED_EGRESS, by result; counted when an attempt ends.",
                unit="ops",
                queries={"{{result}}": rate("solstice_egress_requests_total", "result")},
            ),
            Panel(
                title="Caches of jobs",
                about="Restored and saved, by what came of it; `error` is for the operator.",
                unit="ops",
                queries={
                    "{{operation}}: {{result}}": rate(
                        "solstice_cache_operations_total", "operation", "result"
                    ),
                    "evicted": rate("solstice_caches_evicted_total"),
                },
            ),
            Panel(
                title="Bytes of caches",
                unit="Bps",
                queries={"{{operation}}": rate("solstice_cache_bytes_total", "operation")},
            ),
            Panel(
                title="Time to restore or save a cache",
                unit="s",
                queries=quantiles("solstice_cache_seconds", "operation"),
            ),
            Panel(
                title="Processor of the orchestrators",
                unit="percentunit",
                queries={
                    "{{instance}}": 'rate(process_cpu_seconds_total{job="solstice-orchestrator"}[$__rate_interval])'
                },
            ),
            Panel(
                title="Memory of the orchestrators",
                unit="bytes",
                queries={"{{instance}}": 'process_resident_memory_bytes{job="solstice-orchestrator"}'},
            ),
        ),
    ),
    Dashboard(
        name="forges",
        title="forges",
        panels=(
            Panel(
                title="Webhooks by source",
                unit="reqps",
                queries={"{{source}}": rate("solstice_forge_deliveries_total", "source")},
            ),
            Panel(
                title="Refused webhooks by reason",
                unit="reqps",
                queries={
                    "{{source}} {{reason}}": rate(
                        "solstice_forge_deliveries_total", "source", "reason", where='decision="refused"'
                    )
                },
            ),
            Panel(
                title="Answers by source",
                unit="s",
                queries=quantiles("solstice_forge_webhook_seconds", "source"),
            ),
            Panel(
                title="Statuses by source and outcome",
                unit="reqps",
                queries={
                    "{{source}} {{outcome}}": rate("solstice_forge_status_calls_total", "source", "outcome")
                },
            ),
            Panel(
                title="Time until a status is shown",
                unit="s",
                queries=quantiles("solstice_forge_status_seconds", "source"),
            ),
            Panel(title="Statuses that wait", queries={"{{instance}}": "solstice_forge_statuses_pending"}),
            Panel(
                title="Lookups at forges",
                unit="reqps",
                queries={"{{source}} {{outcome}}": rate("solstice_forge_lookups_total", "source", "outcome")},
            ),
            Panel(
                title="Comparisons with forges",
                unit="ops",
                queries={
                    "{{source}} {{outcome}}": rate("solstice_forge_reconciled_total", "source", "outcome")
                },
            ),
            Panel(
                title="Connections refused before any route",
                unit="ops",
                queries={
                    "forge-integration {{reason}}": rate("solstice_forge_http_refused_total", "reason"),
                    "orchestrator {{reason}}": rate("solstice_http_refused_total", "reason"),
                },
            ),
        ),
    ),
    Dashboard(
        name="broker",
        title="the broker",
        panels=(
            Panel(
                title="Connections",
                about="1 while connected.",
                queries={
                    "{{instance}}": "solstice_broker_connected or solstice_forge_broker_connected",
                },
            ),
            Panel(
                title="Blocked or degraded",
                queries={
                    "{{instance}} blocked": "solstice_broker_blocked or solstice_forge_broker_blocked",
                    "{{instance}} degraded": "solstice_broker_degraded or solstice_forge_broker_degraded",
                },
            ),
            Panel(
                title="Messages by queue",
                queries={"{{queue}}": once("solstice_queue_depth", "transport", "queue")},
            ),
            Panel(
                title="Delivered and not settled",
                queries={"{{queue}}": once("solstice_queue_pending", "transport", "queue")},
            ),
            Panel(
                title="Oldest message by queue",
                unit="s",
                queries={"{{queue}}": once("solstice_queue_oldest_seconds", "transport", "queue")},
            ),
            Panel(
                title="Rest of the lease that ends next",
                unit="s",
                queries={"{{queue}}": once("solstice_queue_lease_seconds", "transport", "queue")},
            ),
            Panel(
                title="Dead letters by class",
                unit="ops",
                queries={"{{priority}}": rate("solstice_dead_letters_total", "priority")},
            ),
            Panel(
                title="Dropped instead of becoming dead letters",
                unit="ops",
                queries={
                    "orchestrator {{reason}}": rate("solstice_dead_letters_dropped_total", "reason"),
                    "forge-integration {{reason}}": rate(
                        "solstice_forge_dead_letters_dropped_total", "reason"
                    ),
                },
            ),
            Panel(
                title="Published by answer",
                unit="ops",
                queries={
                    "requests {{status}}": rate("solstice_forge_publishes_total", "status"),
                    "statuses {{status}}": rate("solstice_outbox_publishes_total", "status"),
                },
            ),
        ),
    ),
)


def write() -> None:
    """Write every dashboard."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for dashboard in DASHBOARDS:
        dashboard.file.write_text(dashboard.text(), encoding="utf-8")


if __name__ == "__main__":
    write()
