"""A job says in which container it runs."""

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.container_spec import (
    ANY_CONTAINER,
    ContainerSpec,
    NetworkAccess,
    PullPolicy,
)
from solstice_orchestrator.store.records.rows import decode_spec, encode_spec
from solstice_orchestrator.workflow.reader import parse_workflow

GIB = 1024**3


def containers(text: str) -> list[ContainerSpec]:
    jobs = parse_workflow(text.encode(), default_runs_on="linux").jobs
    assert [decode_spec(encode_spec(job)) for job in jobs] == list(jobs)
    return [job.container for job in jobs]


def test_a_job_names_its_image_and_its_sizes() -> None:
    text = 'job a memory="2g" cpus=0.5 network=none { image "python:3.12" pull=always; step run=x }'
    assert containers(text) == [
        ContainerSpec(
            image="python:3.12",
            pull=PullPolicy.ALWAYS,
            network=NetworkAccess.NONE,
            memory_bytes=2 * GIB,
            cpus=0.5,
        )
    ]


def test_defaults_give_what_a_job_does_not() -> None:
    text = """
    defaults memory="512m" { image "debian:12" pull=never }
    job a { step run=x }
    job b cpus=2 { image "ghcr.io/acme/build@sha256:%s"; step run=x }
    """ % ("a" * 64)
    first, second = containers(text)
    assert first == ContainerSpec(image="debian:12", pull=PullPolicy.NEVER, memory_bytes=GIB // 2)
    # The pull policy is that of the image beside which it stands.
    assert second == ContainerSpec(
        image="ghcr.io/acme/build@sha256:" + "a" * 64, memory_bytes=GIB // 2, cpus=2.0
    )


def test_a_matrix_fills_the_name_of_the_image() -> None:
    text = 'job a { matrix { python "3.11" "3.12" }; image "python:{matrix.python}"; step run=x }'
    assert [each.image for each in containers(text)] == ["python:3.11", "python:3.12"]


def test_without_wanted_there_are_none() -> None:
    assert containers("job a { step run=x }") == [ANY_CONTAINER]


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ('job a { image "--privileged"; step run=x }', "cannot name an image"),
        ('job a { image "docker-archive:/etc/x"; step run=x }', "cannot name an image"),
        ('job a { image "docker://python"; step run=x }', "cannot name an image"),
        ('job a { image "python 3"; step run=x }', "cannot name an image"),
        ('job a { image "python"; image "debian"; step run=x }', "a second time"),
        ("job a { image; step run=x }", "image takes one name"),
        ('job a { image "python" privileged=#true; step run=x }', "no property 'privileged'"),
        ('job a { image "python" volume="/:/host"; step run=x }', "no property 'volume'"),
        ("job a network=host { step run=x }", 'network is "none" or "default"'),
        ('job a memory="2" { step run=x }', "memory is a size"),
        ('job a memory="1k" { step run=x }', "memory is a size"),
        ("job a cpus=0 { step run=x }", "cpus is a number"),
        ('job a cpus="2" { step run=x }', "cpus is a number"),
        ("job a devices=#true { step run=x }", "no property 'devices'"),
    ],
)
def test_what_a_container_cannot_be_is_refused_with_its_place(job: str, problem: str) -> None:
    with pytest.raises(InvalidWorkflow, match=problem):
        containers(job)
