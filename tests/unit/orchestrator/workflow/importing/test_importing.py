"""Workflow files of other systems become ours, or findings with lines."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.domain.jobs import JobCondition, JobSpec
from solstice_orchestrator.workflow.importing import github_workflow, gitlab_ci, woodpecker
from solstice_orchestrator.workflow.importing.foreign_yaml import UnreadableFile, read_yaml
from solstice_orchestrator.workflow.importing.github_conditions import NoCounterpart, translated
from solstice_orchestrator.workflow.importing.translation import Translation
from solstice_orchestrator.workflow.reader import Workflow, parse_workflow

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*/*.yml"))
SYSTEMS = {
    "github": github_workflow.translate,
    "gitlab": gitlab_ci.translate,
    "woodpecker": woodpecker.translate,
}


def translation(name: str) -> Translation:
    return SYSTEMS[name.partition("/")[0]](read_yaml((HERE / f"{name}.yml").read_bytes()))


def parsed(made: Translation) -> Workflow:
    return parse_workflow(made.text.encode(), default_runs_on="linux")


def jobs(name: str) -> dict[str, JobSpec]:
    return {job.name: job for job in parsed(translation(name)).jobs}


def listed(name: str) -> dict[int, str]:
    return {each.line: each.sentence for each in translation(name).findings}


def test_there_are_files_of_each_system() -> None:
    assert len(FILES) == 20


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_what_is_written_passes_our_reader_and_findings_name_lines(file: Path) -> None:
    made = translation(f"{file.parent.name}/{file.stem}")
    assert parsed(made).jobs
    lines = file.read_text().count("\n") + 1
    assert all(1 <= each.line <= lines for each in made.findings)


def test_a_matrix_steps_and_conditions_of_github() -> None:
    specs = jobs("github/python-matrix")
    assert list(specs) == ["test-ubuntu-22.04-3.11", "test-ubuntu-22.04-3.12", "test-macos-14-3.12"]
    checkout = specs["test-macos-14-3.12"].checkout
    assert checkout is not None
    assert checkout.depth == 0
    setup, install, tests, upload = specs["test-macos-14-3.12"].steps
    assert setup.run.endswith("exit 1")
    assert install.run == 'python -m pip install -U pip\npip install -e ".[dev]"'
    assert tests.env == {"PYTHON": "3.12"}
    assert 'export GITHUB_SHA="$SOLSTICE_COMMIT_SHA"\n: "${GITHUB_RUN_ID:?not imported}"\n' in upload.run
    conditions = parsed(translation("github/python-matrix")).conditions
    assert [each.written for each in conditions["test-macos-14-3.12"].steps] == ["", "", "", "failed"]
    found = listed("github/python-matrix")
    assert found[6] == "'permissions' of a workflow has no counterpart"
    assert found[24] == "the action actions/setup-python@v5 has no counterpart"


def test_paths_and_groups_of_github() -> None:
    made = translation("github/node-paths")
    assert (
        'push "main" {\n        paths "web/**" "package.json"\n        ignore-paths "**/*.md"\n    }'
        in made.text
    )
    assert listed("github/node-paths")[10].startswith("the concurrency group 'ci-${{ github.ref }}'")
    test = jobs("github/node-paths")["test"]
    assert (test.needs, test.timeout_seconds, test.steps[0].may_fail) == (("lint",), 1200, True)
    assert test.steps[0].run == "cd ./web; npm test"
    assert [(each.name, each.path) for each in test.artifacts] == [("coverage", "coverage")]


def test_inputs_secrets_and_results_of_github() -> None:
    workflow = parsed(translation("github/release"))
    assert [
        (each.name, each.type.value, each.default, each.required) for each in workflow.inputs.values()
    ] == [
        ("version", "text", "", True),
        ("target", "choice", "staging", False),
        ("dry-run", "boolean", "true", False),
    ]
    specs = jobs("github/release")
    assert specs["publish"].secrets == ("NPM_TOKEN",)
    assert workflow.conditions["publish"].written == "event == 'tag' && !(input('target') == 'staging')"
    assert workflow.conditions["report"].written == "result('build') == 'failed'"
    assert specs["report"].condition is JobCondition.ALWAYS
    assert specs["publish"].steps[1].run.endswith("exit 1")


def test_what_is_not_understood_fails_or_never_runs() -> None:
    workflow = parsed(translation("github/computed-matrix"))
    assert workflow.conditions["each"].steps[1].written == "branch == 'not imported, line 15'"
    workflow = parsed(translation("gitlab/rules"))
    assert {name: condition.written for name, condition in workflow.conditions.items()} == {
        "build": "event == 'change-request' || branch == default_branch",
        "deploy": "branch == 'not imported, line 11'",
        "pages-of-docs": "branch == 'not imported, line 15'",
    }


def test_stages_and_templates_of_gitlab() -> None:
    specs = jobs("gitlab/stages")
    assert {name: spec.needs for name, spec in specs.items()} == {
        "compile": (),
        "unit": ("compile",),
        "lint": ("compile",),
        "release": ("unit", "lint"),
    }
    assert specs["unit"].steps[0].run == "pip install -r requirements.txt\npytest -q"
    assert (specs["unit"].retries, specs["unit"].timeout_seconds) == (2, 5400)
    assert specs["lint"].steps[0].may_fail
    assert ': "${CI_COMMIT_TAG:?not imported}"' in specs["release"].steps[0].run
    test = jobs("gitlab/extends")["test-1"]
    assert test.container.image == "golang:1.23"
    assert test.env.items() >= {"CGO_ENABLED": "0", "GOFLAGS": "-mod=vendor"}.items()


def test_steps_of_woodpecker_are_one_job() -> None:
    (spec,) = jobs("woodpecker/list").values()
    assert spec.container.image == "node:22"
    assert [step.name for step in spec.steps] == ["install", "test", "publish"]
    assert spec.steps[1].secrets == ("TOKEN",)
    assert spec.steps[2].run.endswith("exit 1")
    specs = jobs("woodpecker/map")
    assert [spec.container.image for spec in specs.values()] == ["golang:1.22", "golang:1.23"]


BOMBS = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x]\n"
    + "\n".join(f"b{n}: &b{n} [{','.join(['*' + ('a' if n == 0 else f'b{n - 1}')] * 9)}]" for n in range(9)),
    "itself": "&a [*a]",
    "deep": "[" * 5000,
    "nothing": "",
    "no YAML": "a: [",
    "long": "x" * 300_000,
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=list(BOMBS))
def test_a_file_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UnreadableFile):
        read_yaml(text.encode())


TEXTS = st.text(st.sampled_from("ab \n\t\"'\\#{}$/\u2028\u0007\u00e9"), max_size=30)


@given(TEXTS, TEXTS)
def test_any_words_are_quoted(name: str, run: str) -> None:
    made = Translation()
    made.write(0, "job a {")
    made.step(1, name, run or "true", env={"A": run}, secrets=["B"])
    made.refused_step(1, 7, name, run)
    made.write(0, "}")
    if run.strip():
        (spec,) = parsed(made).jobs
        assert spec.steps[0].env == {"A": run}
        written, meant = (
            [line for line in text.split("\n") if line.strip()] for text in (spec.steps[0].run, run)
        )
        assert written == meant


@given(st.text(st.sampled_from("ab'()!&|= .githubevent_nam"), max_size=40))
def test_any_condition_is_translated_or_refused(text: str) -> None:
    with suppress(NoCounterpart):
        assert translated(text, in_step=True)
