"""What a job and its proxy get to know of each other."""

import json
from dataclasses import replace

from solstice_orchestrator.domain.container_spec import ContainerSpec, ServiceSpec
from solstice_orchestrator.processes.egress.allowed_hosts import AllowedHosts, parse_hosts, parse_networks
from solstice_orchestrator.processes.egress.egress_facts import EgressResult
from solstice_orchestrator.worker.executors.containers.container_plan import (
    FIRST_USER,
    USERS,
    ContainerPlan,
    ContainerRules,
    container_plan,
    user_of,
)
from solstice_orchestrator.worker.executors.containers.egress_plan import (
    egress_file,
    egress_notice,
    egress_variables,
    read_counts,
)
from tests.builders import execution, job, job_request

ALLOWED = AllowedHosts(
    hosts=parse_hosts("pypi.org,[::1]:80,*.a.org"),
    networks=parse_networks("::1,10.0.0.0/8"),
    most_bytes=7,
)


def planned(allowed: AllowedHosts) -> ContainerPlan:
    asks = ContainerSpec(image="a", services=(ServiceSpec(name="db", image="b"),))
    rules = ContainerRules(egress=allowed)
    plan = container_plan(execution(job("true", container=asks), job_request(trusted=False)), rules)
    assert isinstance(plan, ContainerPlan)
    return plan


def test_a_job_finds_its_proxy_and_its_services_without_it() -> None:
    variables = egress_variables(planned(ALLOWED))
    assert variables["https_proxy"] == variables["HTTP_PROXY"] == "http://127.0.0.1:3128"
    assert variables["NO_PROXY"] == variables["no_proxy"] == "localhost,127.0.0.1,::1,db"
    assert egress_notice(planned(ALLOWED)) != ()
    without = replace(planned(ALLOWED), egress=None)
    assert egress_variables(without) == {}
    assert egress_notice(without) == ()


def test_the_proxy_reads_the_same_list_and_has_a_user_that_no_job_has() -> None:
    content = json.loads(json.dumps(egress_file(ALLOWED, "work-3f", ("proxy",), is_root=True)))
    assert (
        AllowedHosts(
            hosts=parse_hosts(",".join(content["hosts"])),
            networks=parse_networks(",".join(content["networks"])),
            most_bytes=content["bytes"],
        )
        == ALLOWED
    )
    assert content["user"] == user_of("work-3f") + USERS >= FIRST_USER + USERS
    assert egress_file(ALLOWED, "work-3f", ("proxy",), is_root=False)["user"] is None


def test_counts_are_of_the_closed_list_and_may_be_missing() -> None:
    assert read_counts('{"connected": 2, "forged": 9}   ') == ((EgressResult.CONNECTED, 2),)
    assert read_counts("") == read_counts('{"connected": 2, ') == ()
