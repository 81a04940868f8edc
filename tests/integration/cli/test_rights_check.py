"""`topology check --role` on real brokers: rights that a user lacks or has beyond."""

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from typer.testing import CliRunner, Result

from solstice_cli.main import app
from solstice_common.broker import Message, open_broker
from solstice_common.errors import ConfigurationError, RightMissing
from solstice_common.rights.roles import Role
from tests.broker_roles import JOBS, TOPOLOGY, RoleBroker
from tests.brokers import pytest_generate_tests
from tests.garbage import garbage_of_this_test
from tests.polling import WAIT_SECONDS
from tests.role_users import MARKS, NatsRoles, RedisRoles, roles

__all__ = ["garbage_of_this_test", "pytest_generate_tests", "roles"]

WITHOUT_BROKERS = ("embedded",)
EVERY_VERSION = True
pytestmark = [*MARKS]


async def check(*arguments: str) -> Result:
    return await asyncio.to_thread(
        CliRunner().invoke,
        app,
        ["topology", "check", *arguments],
        env={"AMQP_URL": None, "SOLSTICE_HOME": None},
    )


def pairs(document: Mapping[str, Sequence[str]]) -> frozenset[tuple[str, str]]:
    return frozenset((right, name) for right, names in document.items() for name in names or [""])


async def checked(at: RoleBroker, role: Role, rights: Collection[Any]) -> dict[str, Any]:
    """Compare a user of these rights with a role."""
    options = at.options_of_check(at.user(list(rights)))
    done = await check(*options, "--role", role, "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (1 if document["differences"] else 0), done.output
    return document


async def test_user_with_the_rights_of_its_role_differs_in_nothing(roles: RoleBroker) -> None:
    await roles.declared()
    for role in Role:
        rights = roles.rights(role)
        found = await checked(roles, role, rights)
        assert found["differences"] == []
        assert pairs(found["may"]) == roles.single(rights)


async def test_right_that_a_publisher_lacks_is_named(roles: RoleBroker) -> None:
    await roles.declared()
    rights = roles.rights(Role.PUBLISHER)
    # A user of NATS who may not receive answers cannot ask for anything.
    for right in [each for each in rights if each[0] != "subscribe"][::3]:
        left = [each for each in rights if each != right]
        found = await checked(roles, Role.PUBLISHER, left)
        assert pairs(found["lacks"]) == roles.single(rights) - roles.single(left) != frozenset()
        assert all(each["difference"].startswith("lacks the right") for each in found["differences"])
        assert "solstice topology users --role publisher" in found["differences"][0]["remedy"]


async def test_what_a_user_may_beyond_its_role_is_named(roles: RoleBroker) -> None:
    await roles.declared()
    own, every = roles.rights(Role.PUBLISHER), [each for role in Role for each in roles.rights(role)]
    found = await checked(roles, Role.PUBLISHER, dict.fromkeys(every))
    assert found["lacks"] == {}
    if not isinstance(roles, RedisRoles):
        # Grants of several roles under one number are one grant there.
        assert pairs(found["beyond"]) == roles.single(every) - roles.single(own)
    assert any("which no role of it needs" in each["difference"] for each in found["differences"])
    both = await check(
        *roles.options_of_check(roles.user(list(dict.fromkeys(every)))), *("--role", Role.ORCHESTRATOR)
    )
    assert both.exit_code == 1
    assert "has the right" in both.stdout


async def test_the_check_of_rights_changes_nothing(roles: RoleBroker) -> None:
    await roles.declared()
    async with open_broker(roles.url, name="test") as broker:
        await broker.ready(WAIT_SECONDS)
        messages = [
            Message(exchange=each.exchange, routing_key=each.routing_key, body=b"{}", type="t")
            for each in TOPOLOGY.bindings
        ]
        assert all(each.confirmed for each in await broker.publish(messages))

        async def depths() -> list[tuple[int, int]]:
            found = [await broker.depth(each.name) for each in TOPOLOGY.queues]
            return [(depth.ready, depth.consumers) for depth in found if depth is not None]

        before = await depths()
        every = dict.fromkeys(right for role in Role for right in roles.rights(role))
        await checked(roles, Role.ADMIN, every)
        after = await depths()
    assert before == after == [(1, 0)] * len(TOPOLOGY.queues)


async def test_who_may_not_ask_is_told_what_to_do(roles: RoleBroker) -> None:
    await roles.declared()
    url = roles.user(roles.rights(Role.PUBLISHER))
    if isinstance(roles, RedisRoles):
        done = await check("--amqp-url", url, "--role", "publisher")
        assert isinstance(done.exception, RightMissing)
        assert "'acl|dryrun'" in str(done.exception)
        unknown = await check("--amqp-url", roles.url, "--role", "publisher", "--user", "nobody")
        assert "not found" in str(unknown.exception)
    elif isinstance(roles, NatsRoles):
        done = await check("--amqp-url", url, "--role", "publisher", "--user", "other")
        assert "NATS shows the rights of 'other' only to 'other'" in str(done.exception)
        token = await check("--amqp-url", "nats://secret@127.0.0.1:1", "--role", "publisher")
        assert "names no user" in str(token.exception)
    else:
        own = roles.options_of_check(url)[:2]
        done = await check(*own, "--management-url", str(roles.management_url), "--role", "publisher")
        assert "only an administrator may ask" in str(done.exception)
    assert isinstance(done.exception, ConfigurationError | RightMissing)
    assert JOBS.queue not in done.stdout


async def test_embedded_broker_has_no_rights_to_compare() -> None:
    done = await check("--amqp-url", "sqlite:////tmp/none.db", "--role", "publisher")
    assert isinstance(done.exception, ConfigurationError)
    assert "no users" in str(done.exception)
