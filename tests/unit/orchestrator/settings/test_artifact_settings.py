"""The settings of artifacts have defaults that an operator can live with, and limits."""

import pytest

from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_orchestrator.settings.artifact_settings import ArtifactSettings


def test_artifacts_are_next_to_the_other_state_and_bounded() -> None:
    settings = ArtifactSettings()
    assert settings.artifact_directory.name == "artifacts"
    assert (settings.artifact_max_mib, settings.artifact_disk_mib, settings.artifact_days) == (
        1024,
        10240,
        30,
    )


@pytest.mark.parametrize(
    ("name", "value"), [("artifact_max_mib", 0), ("artifact_disk_mib", -1), ("artifact_days", 0)]
)
def test_a_limit_that_means_nothing_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=name.upper()):
        load_settings(ArtifactSettings, **{name: value})
