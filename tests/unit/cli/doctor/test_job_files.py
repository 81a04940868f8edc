"""The doctor looks at the directory of artifacts."""

from pathlib import Path
from typing import Any

from solstice_cli.doctor import job_files
from solstice_cli.doctor.findings import Check, Finding, Level
from solstice_cli.doctor.setup_settings import SetupSettings
from solstice_common.cli.options import load_settings


def artifacts(**settings: Any) -> Finding:
    finding = job_files.artifacts(load_settings(SetupSettings, disk_reserve_mib=0, **settings))
    assert finding.check is Check.ARTIFACTS
    return finding


def test_artifacts_are_looked_for_where_they_are(tmp_path: Path) -> None:
    directory = tmp_path / "artifacts"
    found = artifacts(artifact_directory=directory)
    assert (found.level, "not there yet" in found.detail) == (Level.OK, True)
    for name in ("sha256", "incoming"):
        (directory / name).mkdir(parents=True)
    found = artifacts(artifact_directory=directory, artifact_max_mib=1)
    assert (found.level, f"{directory} works; " in found.detail) == (Level.OK, True)


def test_a_disk_without_room_for_one_artifact_is_a_warning(tmp_path: Path) -> None:
    for name in ("sha256", "incoming"):
        (tmp_path / name).mkdir()
    found = artifacts(artifact_directory=tmp_path, artifact_max_mib=1024**2)
    assert (found.level, "one may have 1048576 MiB" in found.detail) == (Level.WARNING, True)


def test_a_directory_in_which_nothing_can_be_written_is_a_failure() -> None:
    found = artifacts(artifact_directory="/proc/solstice")
    assert (found.level, "/proc: " in found.detail) == (Level.FAILURE, True)
