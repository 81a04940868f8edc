"""The rights of a role suffice for its work on real brokers; none is spare."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from solstice_common.broker import Broker, open_broker
from solstice_common.rights.roles import Role
from solstice_forge.relay.publication import publication
from tests.broker_roles import (
    JOBS,
    Refusal,
    RoleBroker,
    does_its_work_and_nothing_else,
    first_refusals,
)
from tests.brokers import pytest_generate_tests
from tests.builders import job_request
from tests.garbage import garbage_of_this_test
from tests.polling import WAIT_SECONDS, wait_until
from tests.role_users import MARKS, roles
from tests.servers.forge_integration import ForgeProcess, forge_integration
from tests.servers.orchestrator import SharedFiles, orchestrator
from tests.servers.service_process import ServiceProcess
from tests.traffic import wait_for_ready

__all__ = ["garbage_of_this_test", "pytest_generate_tests", "roles"]

WITHOUT_BROKERS = ("embedded",)
pytestmark = [*MARKS]


@pytest.mark.parametrize("role", Role)
async def test_role_does_its_work_and_is_refused_everything_else(roles: RoleBroker, role: Role) -> None:
    await does_its_work_and_nothing_else(roles, role)


@pytest.mark.parametrize("role", Role)
async def test_each_right_of_a_role_is_needed_and_named(roles: RoleBroker, role: Role) -> None:
    await roles.declared()
    for right in filter(roles.is_shown, roles.rights(role)):
        roles.losing = roles.losing_for(right)
        missing = await first_refusals(roles, role, without=right)
        assert any(roles.is_named(right, each) for each in missing), (right, missing)
        if role is Role.ADMIN:
            await roles.declared()


async def ask(broker: Broker, request_id: str) -> None:
    """Publish a request, as a user who may."""
    request = job_request(request_id=request_id)
    (outcome,) = await broker.publish([publication(request.encode(), JOBS, attempt=1)])
    assert outcome.confirmed


def post(service: ForgeProcess) -> None:
    """Have forge-integration accept a request."""
    answer = httpx2.post(
        f"{service.url}/api/v1/jobs",
        json={"repo_url": "https://forge.example/otters/anvil.git", "commit_sha": 40 * "a"},
        timeout=WAIT_SECONDS,
        trust_env=False,
    )
    assert answer.status_code == 202, answer.text


@asynccontextmanager
async def as_a_user_who_may(roles: RoleBroker) -> AsyncIterator[Broker]:
    await roles.declared()
    async with open_broker(roles.url, name="test") as broker:
        await broker.ready(WAIT_SECONDS)
        yield broker


def named(service: ServiceProcess, right: Any, roles: RoleBroker) -> bool:
    """Wait until a service has logged a missing right; return whether it is this one."""
    line = service.logged("broker.right_missing")
    assert roles.is_named(right, Refusal(line["right"], line["target"])), line
    return True


async def test_right_that_forge_integration_loses_is_named_and_no_request_is_lost(
    roles: RoleBroker, tmp_path: Path
) -> None:
    rights, lost = roles.rights(Role.FORGE_INTEGRATION), roles.publishing
    url = roles.user(rights)
    async with as_a_user_who_may(roles) as broker:
        with forge_integration(SharedFiles(directory=tmp_path), AMQP_URL=url) as forge:
            post(forge)
            await wait_for_ready(broker, JOBS.queue, 1)
            roles.user([each for each in rights if each != lost])
            roles.end_connections()
            post(forge)
            assert await asyncio.to_thread(named, forge, lost, roles)
            roles.user(rights)
            await wait_for_ready(broker, JOBS.queue, 2)


async def test_right_that_the_orchestrator_loses_is_named_and_no_request_is_lost(
    roles: RoleBroker, tmp_path: Path
) -> None:
    rights, lost = roles.rights(Role.ORCHESTRATOR), roles.reading
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    url = roles.user(rights)
    async with as_a_user_who_may(roles) as broker:
        with orchestrator(SharedFiles(directory=tmp_path), AMQP_URL=url) as service:
            await ask(broker, first)
            await asyncio.to_thread(service.logged, "requests.stored", request_ids=[first])
            roles.user([each for each in rights if each != lost])
            roles.end_connections()
            await ask(broker, second)
            assert await asyncio.to_thread(named, service, lost, roles)
            roles.user(rights)
            # The first may come again with it: the connection ended before its ack, or after it.
            await wait_until(lambda: any(second in each.get("request_ids", ()) for each in service.events))
