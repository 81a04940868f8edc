"""Settings of intake and starts: off by default, and never negative."""

import pytest

from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_orchestrator.settings.flow_settings import FlowSettings


def test_what_follows_the_speed_is_off_by_default() -> None:
    settings = FlowSettings()
    assert (settings.max_backlog, settings.intake_seconds, settings.start_seconds) == (100_000, 0.0, 0.0)


@pytest.mark.parametrize("name", list(FlowSettings.model_fields))
@pytest.mark.parametrize("value", ["-1", "soon", "nan"])
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name.upper()):
        load_settings(FlowSettings, **{name: value})
