"""A job says which services run beside it."""

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.container_spec import (
    ContainerSpec,
    NetworkAccess,
    PullPolicy,
    ServiceSpec,
)
from solstice_orchestrator.store.records.rows import decode_spec, encode_spec
from solstice_orchestrator.workflow.reader import parse_workflow

POSTGRES = """
job test {
    service "postgres" image="postgres:17" pull=always memory="512m" cpus=0.5 ready-timeout="90s" {
        env { POSTGRES_PASSWORD "x"; POSTGRES_USER "ci" }
        ready "pg_isready -U ci"
        port 5432
    }
    step run=x
}
"""
DB = ServiceSpec(name="db", image="postgres:17")


def containers(text: str) -> list[ContainerSpec]:
    jobs = parse_workflow(text.encode(), default_runs_on="linux").jobs
    assert [decode_spec(encode_spec(job)) for job in jobs] == list(jobs)
    return [job.container for job in jobs]


def test_a_service_says_what_it_runs_and_when_it_is_ready() -> None:
    (container,) = containers(POSTGRES)
    assert container.services == (
        ServiceSpec(
            name="postgres",
            image="postgres:17",
            pull=PullPolicy.ALWAYS,
            env={"POSTGRES_PASSWORD": "x", "POSTGRES_USER": "ci"},
            ready="pg_isready -U ci",
            port=5432,
            ready_seconds=90.0,
            memory_bytes=512 * 1024**2,
            cpus=0.5,
        ),
    )


def test_services_of_defaults_are_those_of_every_job_and_a_job_replaces_them_by_name() -> None:
    text = """
    defaults network=services-only { service "db" image="postgres:17"; service "cache" image="valkey" }
    job a { step run=x }
    job b { service "db" image="postgres:18"; step run=x }
    """
    first, second = containers(text)
    cache = ServiceSpec(name="cache", image="valkey")
    assert first == ContainerSpec(network=NetworkAccess.SERVICES_ONLY, services=(DB, cache))
    assert second.services == (ServiceSpec(name="db", image="postgres:18"), cache)


def test_a_matrix_fills_image_variables_and_command() -> None:
    text = """
    job a {
        matrix { pg "16" "17" }
        service "db" image="postgres:{matrix.pg}" { env { V "{matrix.pg}" }; ready "is {matrix.pg}" }
        step run=x
    }
    """
    found = [each.services[0] for each in containers(text)]
    assert [(each.image, each.env["V"], each.ready) for each in found] == [
        ("postgres:16", "16", "is 16"),
        ("postgres:17", "17", "is 17"),
    ]


SERVICE = 'job a {{ step run=x\n  service "db" image=x {{ {} }} }}'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('job a { step run=x\n service image="x" }', "line 2, column 2: a service has one name"),
        ('job a { step run=x\n service "db" }', "line 2, column 2: a service needs image"),
        ('job a { step run=x\n service "d_b" image=x }', "line 2, column 10: 'd_b' cannot name a service"),
        ('job a { step run=x\n service "-db" image=x }', "cannot name a service"),
        ('job a { step run=x\n service "Db" image=x }', "cannot name a service"),
        ('job a { step run=x\n service "localhost" image=x }', "cannot name a service"),
        (f'job a {{ step run=x\n service "{"d" * 64}" image=x }}', "cannot name a service"),
        (
            'job a { step run=x\n service "db" image="--privileged" }',
            "line 2, column 21: .* cannot name an image",
        ),
        ('job a { step run=x\n service "db" image=x privileged=#true }', "no property 'privileged'"),
        ('job a { step run=x\n service "db" image=x volume="/:/h" }', "no property 'volume'"),
        (
            'job a { step run=x; service "db" image=x\n service "db" image=y }',
            "line 2, column 2: there is a service 'db'",
        ),
        (
            SERVICE.format("prot 1"),
            "line 2, column 26: 'prot' is not known in a service .did you mean 'port'",
        ),
        (SERVICE.format("port 0"), "line 2, column 31: port takes one number"),
        (SERVICE.format("port 65536"), "port takes one number"),
        (SERVICE.format('port "5432"'), "port takes one number"),
        (SERVICE.format("port 1; port 2"), "'port' stands here a second time"),
        (SERVICE.format('ready ""'), "ready is neither empty"),
        (SERVICE.format("ready a b"), "ready takes one command"),
        (SERVICE.format("env { SOLSTICE_X y }"), "set by Solstice CI"),
        (SERVICE.format('secret "TOKEN"'), "'secret' is not known in a service"),
        (
            'job a { step run=x; service "a" image=x { port 1 }\n service "b" image=x { port 1 } }',
            "line 2, column 2: the services 'a' and 'b' cannot both have the port 1",
        ),
        (
            'job a network=none { step run=x\n service "db" image=x }',
            "line 2, column 2: with network=none .* write network=services-only",
        ),
        (
            "job a { step run=x\n" + "".join(f'service "s{n}" image=x\n' for n in range(11)) + "}",
            "line 12, column 1: a job may have 10 services",
        ),
    ],
)
def test_what_a_service_cannot_be_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidWorkflow, match=problem):
        containers(text)
