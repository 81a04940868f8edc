"""Removes the settings of this machine from the environment of each test."""

import pytest

from solstice_forge.settings import ForgeSettings


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ForgeSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
