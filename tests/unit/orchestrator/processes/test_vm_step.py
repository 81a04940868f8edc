"""A step whose VM is not there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.processes import vm_step


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"lost": True}), ({"gone": 0}, {"gone": 0}), ({"unready": "x"}, {"unready": "x"})],
)
def test_it_fails_and_says_so_where_nothing_else_was_noted(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    facts = tmp_path / "facts"
    facts.write_text(json.dumps(before))
    command = [sys.executable, "-I", "-S", vm_step.__file__, str(tmp_path), "1", "/step"]
    assert subprocess.run(command, check=False).returncode == 1
    assert json.loads(facts.read_text()) == after
