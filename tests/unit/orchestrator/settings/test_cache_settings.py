"""The settings of caches have defaults that an operator can live with, and limits."""

import pytest

from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_orchestrator.settings.cache_settings import CacheSettings


def test_caches_are_next_to_the_other_state_and_bounded() -> None:
    settings = CacheSettings()
    assert settings.cache_directory.name == "caches"
    assert (settings.cache_max_mib, settings.cache_repository_mib, settings.cache_disk_mib) == (
        2048,
        5120,
        20480,
    )
    assert settings.cache_days == 14.0


@pytest.mark.parametrize(
    ("name", "value"),
    [("cache_max_mib", 0), ("cache_repository_mib", -1), ("cache_disk_mib", -1), ("cache_days", -1)],
)
def test_a_limit_that_means_nothing_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=name.upper()):
        load_settings(CacheSettings, **{name: value})
