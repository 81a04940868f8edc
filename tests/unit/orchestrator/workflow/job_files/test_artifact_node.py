"""A job says which files of it are kept."""

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.jobs import ArtifactSpec, ReportSpec
from solstice_orchestrator.store.records.rows import decode_spec, encode_spec
from solstice_orchestrator.workflow.job_files.artifact_node import MAX_ARTIFACTS
from solstice_orchestrator.workflow.reader import parse_workflow


def reports(lines: str) -> list[tuple[ReportSpec, ...]]:
    jobs = parse_workflow(f"job build {{\n{lines}\n step run=x\n}}".encode(), default_runs_on="linux").jobs
    assert [decode_spec(encode_spec(each)) for each in jobs] == list(jobs)
    return [each.reports for each in jobs]


def artifacts(lines: str, job: str = "") -> list[tuple[ArtifactSpec, ...]]:
    jobs = parse_workflow(
        f"job build {{\n{lines}\n{job} step run=x\n}}".encode(), default_runs_on="linux"
    ).jobs
    assert [decode_spec(encode_spec(each)) for each in jobs] == list(jobs)
    return [each.artifacts for each in jobs]


def test_an_artifact_has_a_name_files_and_a_time() -> None:
    assert artifacts('artifact "dist" path="dist/**" retention="14d"\nartifact log path="build/*.log"') == [
        (
            ArtifactSpec(name="dist", path="dist/**", retention_seconds=14 * 86400.0),
            ArtifactSpec(name="log", path="build/*.log"),
        )
    ]
    assert artifacts("") == [()]


def test_each_job_of_a_matrix_has_artifacts_of_its_own() -> None:
    found = artifacts('matrix { os a b }\nartifact "dist-{matrix.os}" path="{matrix.os}/**" retention="12h"')
    assert [(each.name, each.path, each.retention_seconds) for (each,) in found] == [
        ("dist-a", "a/**", 43200.0),
        ("dist-b", "b/**", 43200.0),
    ]


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ("artifact", "2:1", "one name"),
        ("artifact a b path=x", "2:12", "one name"),
        ("artifact a", "2:1", "needs path"),
        ("artifact a path=x when=now", "2:19", "no property 'when'"),
        ("artifact a path=x { x }", "2:21", "takes no block"),
        ('artifact "a/b" path=x', "2:10", "cannot be the name"),
        ("artifact a path=x\nartifact a path=y", "3:10", "already"),
        ("\n".join(f"artifact a{n} path=x" for n in range(MAX_ARTIFACTS + 1)), "22:1", "20 artifacts"),
        ("artifact a path=5", "2:17", "must be text"),
        ('artifact a path=""', "2:17", "between 1 and 1024"),
        (f"artifact a path={'x' * 1025}", "2:17", "between 1 and 1024"),
        ('artifact a path="/etc/passwd"', "2:17", "begins in the workspace"),
        ('artifact a path="../x"', "2:17", "'..'"),
        ('artifact a path="a/../../x"', "2:17", "'..'"),
        ('artifact a path="a//x"', "2:17", "empty"),
        ('artifact a path="./x"', "2:17", "'.'"),
        ('artifact a path="x/"', "2:17", "empty"),
        ('artifact a path="x["', "2:17", "without its ]"),
        ('artifact a path="a\\u{0}b"', "2:17", "U+0000"),
        ("artifact a path=x retention=14", "2:29", "must be text"),
        ('artifact a path=x retention="14"', "2:29", "days or hours"),
        ('artifact a path=x retention="367d"', "2:29", "at most 366 days"),
        ('artifact a path=x retention="0d"', "2:29", "days or hours"),
        ('matrix { up ".." }\nartifact a path="{matrix.up}/x"', "3:17", "'..'"),
    ],
)
def test_a_mistake_is_named_with_its_place(line: str, place: str, words: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        artifacts(line)
    assert f"{caught.value.line}:{caught.value.column}" == place
    assert words in str(caught.value)


def test_a_report_has_a_format_and_files() -> None:
    assert reports('report "junit" "build/**/*.xml"\nreport junit a.xml required=#true') == [
        (
            ReportSpec(format="junit", path="build/**/*.xml"),
            ReportSpec(format="junit", path="a.xml", required=True),
        )
    ]
    assert reports("") == [()]
    assert [each.path for (each,) in reports('matrix { os a b }\nreport junit "{matrix.os}/*.xml"')] == [
        "a/*.xml",
        "b/*.xml",
    ]


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ("report junit", "2:1", "a format and its files"),
        ("report junit a b", "2:16", "a format and its files"),
        ("report tap a", "2:8", "and not 'tap'"),
        ("report junit a { x }", "2:18", "takes no block"),
        ("report junit a required=yes", "2:25", "required is #true or #false"),
        ("report junit a name=x", "2:16", "no property 'name'"),
        ('report junit "../x"', "2:14", "'..'"),
        ("report junit a\nreport junit a", "3:14", "already"),
        ("\n".join(f"report junit a{n}" for n in range(11)), "12:1", "10 nodes 'report'"),
    ],
)
def test_a_mistake_in_a_report_is_named_with_its_place(line: str, place: str, words: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        reports(line)
    assert f"{caught.value.line}:{caught.value.column}" == place
    assert words in str(caught.value)
