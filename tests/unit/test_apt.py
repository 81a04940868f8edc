"""The installation of servers for the tests."""

import signal
from pathlib import Path

import pytest

from tests.servers.apt import locked


def test_no_test_runs_out_of_time_while_something_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before, _ = signal.getitimer(signal.ITIMER_REAL)
    assert before > 0, "pytest-timeout has given this test its time"
    with locked("something"):
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    after, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < after <= before
