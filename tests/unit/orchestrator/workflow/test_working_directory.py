"""A step runs in the directory that it, or its job, names."""

import subprocess
from pathlib import Path

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.workflow.reader import parse_workflow


def runs(text: str) -> list[str]:
    (job,) = parse_workflow(text.encode(), default_runs_on="here").jobs
    return [step.run for step in job.steps]


def shell(run: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    script = directory / "step.sh"
    script.write_text(run + "\n")
    return subprocess.run(
        ["bash", "-eo", "pipefail", script],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "CDPATH": "/"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_steps_directory_goes_before_its_jobs() -> None:
    text = 'job a working-directory=web { step run=x; step run=y working-directory="ü b/{matrix.v}"; matrix { v "1" } }'
    assert runs(text) == ["cd ./web; x", "cd './ü b/1'; y"]
    assert runs("job a { step run=x }") == ["x"]


@pytest.mark.parametrize(
    "name", ["web", "a b", "it's", '"', "$HOME", "`id`", "*", "a;b", "ü\\n", "~", "-", "-P"]
)
def test_a_shell_goes_into_a_directory_of_any_name_and_counts_lines_as_the_file_does(
    name: str, tmp_path: Path
) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    (run,) = runs(f'job a {{ step run="pwd\\nfails_here" working-directory="{quoted}" }}')
    assert shell(run, tmp_path).returncode == 1
    (tmp_path / name).mkdir()
    ended = shell(run, tmp_path)
    assert (ended.stdout, ended.returncode) == (f"{tmp_path / name}\n", 127)
    assert "line 2: fails_here" in ended.stderr


@pytest.mark.parametrize("path", ["/tmp", "..", "a/../b"])
def test_a_directory_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(InvalidWorkflow, match="is no directory of the checkout") as caught:
        runs(f'job a {{ step run=x working-directory="{path}" }}')
    assert (caught.value.line, caught.value.column) == (1, 38)
