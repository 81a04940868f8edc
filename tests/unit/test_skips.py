"""A skipped test says what it was not asked for, or it has failed."""

import subprocess
import sys
from pathlib import Path

from tests.mutation.choosing import ROOT

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="not asked for: no disk")
def test_mark(): ...

def test_call():
    pytest.skip("not asked for: no disk")

@pytest.mark.skip
def test_mark_without_reason(): ...

def test_call_with_another_reason():
    pytest.skip("later")

def test_package_that_lacks():
    pytest.importorskip("no_such_module")
"""


def test_a_skip_without_a_reason_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-v"),
            *("-c", str(ROOT / "pyproject.toml"), str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.partition("::")[2].split()[:2] for line in ended.stdout.splitlines() if "%]" in line]
    assert dict(lines) == {
        "test_mark": "SKIPPED",
        "test_call": "SKIPPED",
        "test_mark_without_reason": "ERROR",
        "test_call_with_another_reason": "FAILED",
        "test_package_that_lacks": "FAILED",
    }
    assert "this one said 'later'" in ended.stdout
