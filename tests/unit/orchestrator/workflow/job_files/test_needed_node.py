"""A job names the artifacts that it gets from jobs that it needs."""

import orjson
import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.handing_spec import NeededArtifact
from solstice_orchestrator.domain.image_names import is_image_name
from solstice_orchestrator.store.records.rows import decode_spec, encode_spec
from solstice_orchestrator.workflow.job_files.needed_node import MAX_NEEDED
from solstice_orchestrator.workflow.reader import parse_workflow

BUILD = 'job build { step run=x; artifact dist path="dist/**"; artifact log path=log }\n'
OTHER = "job other { step run=x; artifact dist path=other; artifact docs path=docs }\n"
MATRIX = (
    'job made { matrix { os a b }; step run=x; artifact out path=out; artifact "bin-{matrix.os}" path=b }\n'
)


def needed(lines: str, before: str = BUILD, needs: str = "needs build") -> list[NeededArtifact]:
    """What the last job gets."""
    jobs = parse_workflow(
        f"{before}job test {{ {needs}; step run=y\n{lines}\n}}".encode(), default_runs_on="linux"
    ).jobs
    assert [decode_spec(encode_spec(each)) for each in jobs] == list(jobs)
    return list(jobs[-1].needed_artifacts)


def of(job: str, name: str, into: str = "") -> NeededArtifact:
    return NeededArtifact(job=job, name=name, into=into)


def test_artifacts_are_those_of_the_needed_job_that_has_them() -> None:
    assert needed("artifacts dist log\nartifacts dist into=again") == [
        of("build", "dist"),
        of("build", "log"),
        of("build", "dist", "again"),
    ]
    both = BUILD + OTHER
    assert needed("artifacts docs log", both, "needs build other") == [
        of("other", "docs"),
        of("build", "log"),
    ]
    lines = 'artifacts dist from=build\nartifacts dist from=other into="a/b"'
    assert needed(lines, both, "needs build other") == [of("build", "dist"), of("other", "dist", "a/b")]


def test_of_a_matrix_one_job_is_named_or_each_gets_a_directory() -> None:
    needs = "needs made"
    assert needed("artifacts bin-b", MATRIX, needs) == [of("made-b", "bin-b")]
    assert needed("artifacts bin-b from=made into=x", MATRIX, needs) == [of("made-b", "bin-b", "x")]
    assert needed("artifacts out from=made-a", MATRIX, needs) == [of("made-a", "out")]
    assert needed("artifacts out from=made into=all", MATRIX, needs) == [
        of("made-a", "out", "all/made-a"),
        of("made-b", "out", "all/made-b"),
    ]
    assert needed("artifacts out from=made", MATRIX, needs)[1] == of("made-b", "out", "made-b")


def test_values_of_its_own_matrix_stand_in_every_place() -> None:
    lines = 'matrix { os b }\nartifacts "bin-{matrix.os}" from="made-{matrix.os}" into="for/{matrix.os}"'
    assert needed(lines, MATRIX, "needs made") == [of("made-b", "bin-b", "for/b")]


def test_an_orchestrator_from_before_refuses_a_job_that_needs_artifacts() -> None:
    # It reads `container` and `container_with_services`: a name that is no image makes it refuse the job.
    (*_, test) = parse_workflow(
        f'{BUILD}job test {{ needs build; artifacts dist; image "debian:12"; step run=y }}'.encode(),
        default_runs_on="linux",
    ).jobs
    fields = orjson.loads(encode_spec(test))
    assert not is_image_name(fields["container"]["image"])
    assert "update this one" in fields["container"]["image"]
    assert "container_with_services" not in fields


@pytest.mark.parametrize(
    ("lines", "before", "needs", "place", "words"),
    [
        ("artifacts dits", BUILD, "needs build", "3:11", "no job that it needs has an artifact 'dits' (did you mean 'dist'?)"),
        ("artifacts dist", BUILD, "env { A b }", "3:11", "a job gets artifacts of jobs that it needs"),
        ("artifacts docs", BUILD + OTHER, "needs build", "4:11", "no job that it needs has an artifact 'docs'"),
        ("artifacts dist", BUILD + OTHER, "needs build other", "4:11", "several jobs have an artifact 'dist': 'build', 'other'; say which one: from=\"build\""),
        ("artifacts out", MATRIX, "needs made", "3:11", "'made-a', 'made-b'; say which one"),
        ("artifacts dist from=biuld", BUILD, "needs build", "3:21", "'biuld' is not among the jobs that this job needs (did you mean 'build'?)"),
        ("artifacts dist from=other", BUILD + OTHER, "needs build", "4:21", "'other' is not among"),
        ("artifacts docs from=build", BUILD + OTHER, "needs build other", "4:11", "the job 'build' has no artifact 'docs'"),
        ("artifacts dist dist", BUILD, "needs build", "3:16", "there already"),
        ("artifacts", BUILD, "needs build", "3:1", "takes names"),
        ("artifacts dist { x }", BUILD, "needs build", "3:18", "takes no block"),
        ("artifacts dist to=x", BUILD, "needs build", "3:16", "no property 'to'"),
        ('artifacts "a/b"', BUILD, "needs build", "3:11", "cannot be the name"),
        ("artifacts 5", BUILD, "needs build", "3:11", "must be text"),
        ("artifacts dist from=5", BUILD, "needs build", "3:21", "must be text"),
        ('artifacts dist into=".."', BUILD, "needs build", "3:21", "no directory in the workspace"),
        ('artifacts dist into="/x"', BUILD, "needs build", "3:21", "no directory"),
        ('artifacts dist into=""', BUILD, "needs build", "3:21", "no directory"),
        ('artifacts dist into="a//b"', BUILD, "needs build", "3:21", "no directory"),
        (f"artifacts dist into={'x' * 1025}", BUILD, "needs build", "3:21", "no directory"),
        ("\n".join(f"artifacts dist into=d{n}" for n in range(MAX_NEEDED + 1)), BUILD, "needs build", "103:11", "100 artifacts"),
        ('artifacts "{matrix.os}"', BUILD, "needs build", "3:11", "no matrix"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(
    lines: str, before: str, needs: str, place: str, words: str
) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        needed(lines, before, needs)
    assert words in str(caught.value)
    assert f"{caught.value.line}:{caught.value.column}" == place
