"""A step runs where and by what interpreter it, or its job, says."""

import subprocess
from pathlib import Path

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.workflow.reader import parse_workflow
from solstice_orchestrator.workflow.step_command import MAX_ARGUMENT_BYTES


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


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("bash", 'false | true; echo "no"'),
        ("sh", 'false; echo "no"'),
        ("python3", "import sys\nsys.exit('it\\'s \"line\" 2' and 1)"),
        ("perl", "my $one = 1;\nexit $one;"),
    ],
)
def test_a_shell_runs_the_program_and_its_exit_code_is_the_steps(
    name: str, program: str, tmp_path: Path
) -> None:
    written = program.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    (run,) = runs(f'job a shell={name} {{ step run="{written}" }}')
    ended = shell(run, tmp_path)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 1)


def test_a_shell_runs_in_the_directory_and_leaves_the_input_alone(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    program = "import os, sys; print(os.getcwd(), len(sys.argv))"
    (run,) = runs(f'job a working-directory=web {{ step shell="python3" run="{program}" }}')
    assert shell(run, tmp_path).stdout == f"{tmp_path / 'web'} 1\n"


def test_versions_of_python_are_shells_and_what_is_unknown_is_refused_with_those_known() -> None:
    assert runs('job a { step shell="python3.12" run="x" }') == ["exec python3.12 -c x"]
    for name in ("python3.12.1", "python2", "python3x", "fish", "bash -x", ""):
        with pytest.raises(InvalidWorkflow, match="is no shell that is known; known: bash, sh, python"):
            runs(f'job a {{ step run=x shell="{name}" }}')


def test_a_program_that_no_argument_can_hold_is_refused(tmp_path: Path) -> None:
    largest = MAX_ARGUMENT_BYTES - len("exec sh -ec ''")
    (run,) = runs(f'job a {{ step shell=sh run="#{" " * (largest - 1)}" }}')
    assert shell(run, tmp_path).returncode == 0
    with pytest.raises(InvalidWorkflow, match="at most 120000 bytes"):
        runs(f'job a {{ step shell=sh run="#{" " * largest}" }}')
