"""A private Prometheus with the project's alerts, and `promtool`."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx2
import yaml

from tests.servers.apt import apt_can_install, apt_install
from tests.servers.guarded_process import GuardedProcess
from tests.servers.ports import free_ports
from tests.servers.scratch import scratch_folder
from tests.servers.server import TLS, Server

COMPOSE: Final = Path(__file__).parents[2] / "compose" / "prometheus"
ALERTS: Final = COMPOSE / "alerts.yaml"
_SHORT: Final = "1s"


@cache
def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`, installed with apt-get if need be.

    RuntimeError says what to install when there is none.
    """
    if shutil.which(name) is None and apt_can_install():
        apt_install("prometheus")
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(
            f"these tests need {name}: install Prometheus (Debian: apt-get install prometheus)"
        )
    return found


def promtool(*arguments: str | Path, cwd: Path | None = None) -> str:
    """Run promtool; return what it printed, and raise AssertionError with it when it fails."""
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def alert_rules() -> list[dict[str, Any]]:
    """Return the rules of all alerts."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


class Prometheus(Server):
    """Scrapes services every second. Its alerts fire a second after their condition, not minutes."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        """`targets` are the services by the names of their jobs, each as HOST:PORT."""
        self._directory = scratch_folder("prometheus", synced=False)
        self._process = GuardedProcess("prometheus", self._directory)
        (self._port,) = free_ports(1)
        document = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
        for group in document["groups"]:
            for rule in group["rules"]:
                rule["for"] = _SHORT
        (self._directory / "alerts.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        configuration = {
            "global": {"scrape_interval": _SHORT, "evaluation_interval": _SHORT},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]}
                for job, target in targets.items()
            ],
        }
        (self._directory / "prometheus.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")

    def start(self) -> None:
        self._process.start(
            [
                program("prometheus"),
                f"--config.file={self._directory / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            environment=dict(os.environ),
            answers=self._answers,
        )

    def stop(self) -> None:
        self._process.end(b"stop\n")

    def kill(self) -> None:
        self._process.end(b"kill\n")

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def api(self, path: str, **query: str) -> Any:
        """Return the data of an answer of the API: prometheus.io/docs/prometheus/latest/querying/api."""
        answer = httpx2.get(
            f"http://127.0.0.1:{self._port}/api/v1/{path}", params=query, trust_env=False, verify=TLS
        )
        return answer.raise_for_status().json()["data"]

    def values(self, query: str) -> dict[str, float]:
        """Return the values of a query by their only label."""
        return {
            "".join(each["metric"].values()): float(each["value"][1])
            for each in self.api("query", query=query)["result"]
        }

    def firing(self) -> dict[str, str]:
        """Return the summaries of firing alerts by their names."""
        return {
            alert["labels"]["alertname"]: alert["annotations"]["summary"]
            for alert in self.api("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def _answers(self) -> bool:
        try:
            return httpx2.get(
                f"http://127.0.0.1:{self._port}/-/ready", trust_env=False, verify=TLS
            ).is_success
        except httpx2.TransportError:
            return False
