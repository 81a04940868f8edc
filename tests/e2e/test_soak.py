"""`./just soak` with few jobs succeeds on both deployments, and reports it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)  # it starts servers of its own
@pytest.mark.parametrize("line", [(), ("--services",)], ids=["up", "services"])
def test_nothing_is_left_behind_by_a_few_hundred_jobs(line: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.soak", "--jobs", "200", "--run-size", "50", "--every", "0.1"),
            *("--directory", str(tmp_path), *line),
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "200 jobs in" in done.stdout
    assert done.stdout.splitlines()[-1] == "verdict: nothing was left behind"
