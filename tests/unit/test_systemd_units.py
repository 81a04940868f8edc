"""The units of systemd are what systemd accepts, and set what the services know."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from solstice_forge.settings import ForgeSettings
from solstice_orchestrator.settings import OrchestratorSettings

UNITS = Path(__file__).parents[2] / "compose" / "systemd"
SETTINGS: dict[str, type[BaseSettings]] = {
    "forge-integration": ForgeSettings,
    "orchestrator": OrchestratorSettings,
}
EXPOSED_AT_MOST = {"forge-integration": 15, "orchestrator": 80}
"""By `systemd-analyze security`, in tenths; jobs may do more than a service that takes webhooks."""


def analyze(*arguments: str | Path) -> tuple[int, str]:
    """Run systemd-analyze; return its exit code and what it printed."""
    if shutil.which("systemd-analyze") is None:
        # Debian has it; a machine without systemd has no use for the units.
        pytest.skip("not asked for: there is no systemd on this machine")
    done = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def lines(service: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", (UNITS / f"{service}.service").read_text(), re.MULTILINE)


@pytest.mark.parametrize("service", SETTINGS)
def test_systemd_accepts_the_unit(service: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name(service)
    text = (UNITS / f"{service}.service").read_text()
    assert f"ExecStart=/opt/solstice/bin/{service} " in text
    unit = tmp_path / f"{service}.service"
    unit.write_text(text.replace(f"/opt/solstice/bin/{service}", str(program)))
    assert analyze("verify", "--man=no", unit) == (0, "")


@pytest.mark.parametrize("service", SETTINGS)
def test_unit_exposes_no_more_than_before(service: str) -> None:
    code, printed = analyze(
        "security",
        "--offline=true",
        f"--threshold={EXPOSED_AT_MOST[service]}",
        UNITS / f"{service}.service",
    )
    assert code == 0, printed.splitlines()[-1]


@pytest.mark.parametrize("service", SETTINGS)
def test_variables_are_settings_of_the_service(service: str) -> None:
    names = [line.partition("=")[0] for line in lines(service, "Environment")]
    assert names
    assert {name.lower() for name in names} <= SETTINGS[service].model_fields.keys()


@pytest.mark.parametrize("service", SETTINGS)
def test_files_are_in_the_directory_of_the_service(service: str) -> None:
    (directory,) = lines(service, "StateDirectory")
    places = [line.partition("=")[2] for line in lines(service, "Environment") if "/" in line]
    assert places
    assert all(f"/var/lib/{directory}/" in place for place in places)


def test_jobs_end_before_systemd_kills_them() -> None:
    (seconds,) = lines("orchestrator", "TimeoutStopSec")
    settings = dict(line.split("=", 1) for line in lines("orchestrator", "Environment"))
    assert int(seconds) >= int(settings["DRAIN_SECONDS"]) + 30
    assert lines("orchestrator", "KillMode") == ["mixed"]
    assert lines("orchestrator", "Delegate") == ["yes"]
