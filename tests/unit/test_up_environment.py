"""What tests of `solstice up` hand down to it."""

from pathlib import Path

import pytest

from solstice_common.runtime.public_interfaces import VARIABLE
from tests.servers.service_process import base_environment
from tests.servers.solstice_up import clean_environment


def test_services_of_tests_inherit_whether_the_inside_of_libraries_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "all")
    monkeypatch.setenv("SOLSTICE_URL", "http://elsewhere")
    up = clean_environment(tmp_path)
    assert (up[VARIABLE], base_environment()[VARIABLE]) == ("all", "all")
    assert "SOLSTICE_URL" not in up
