"""The permissions of RabbitMQ for each role, as a table and as commands."""

import re

import pytest

from solstice_common.rights.rabbitmq_rights import RabbitMQRights, expression, rabbitmq_rights
from solstice_common.rights.role_users import users_of_roles
from solstice_common.rights.roles import PURPOSES, Role
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology


def test_expression_matches_its_names_and_no_other() -> None:
    names = ["solstice.jobs", "a-b (c)|$"]
    pattern = expression(names)
    assert all(re.search(pattern, name) for name in names)
    assert not any(re.search(pattern, name) for name in ("solstice.jobs.v1", "solsticexjobs", "a-b", ""))
    assert re.search(expression([]), "solstice.jobs") is None


@pytest.mark.parametrize("role", Role)
def test_every_role_has_a_purpose_and_names_only_our_objects(role: Role) -> None:
    settings = BrokerSettings(amqp_priorities="split")
    topology = full_topology(settings)
    ours = {
        "amq.default",
        *(each.name for each in topology.exchanges),
        *(each.name for each in topology.queues),
    }
    named = rabbitmq_rights(role, settings).names()
    assert PURPOSES[role]
    assert {name for names in named.values() for name in names} <= ours


def test_only_the_admin_may_configure() -> None:
    may = {role for role in Role if rabbitmq_rights(role, BrokerSettings()).configure}
    assert may == {Role.ADMIN}


def test_admin_reads_of_queues_those_with_a_dead_letter_exchange() -> None:
    read = rabbitmq_rights(Role.ADMIN, BrokerSettings()).read
    queues = full_topology(BrokerSettings()).queues
    assert {each.name for each in queues} & read == {
        each.name for each in queues if not each.name.endswith(".dlq")
    }


def test_classes_of_priority_bring_their_queues() -> None:
    split = rabbitmq_rights(Role.ORCHESTRATOR, BrokerSettings(amqp_priorities="split"))
    assert "solstice.jobs.v1.critical" in split.read
    assert "solstice.dlx.critical" in split.write


def test_one_user_may_have_several_roles() -> None:
    settings = BrokerSettings(amqp_url="amqp://host/%2f")
    both = users_of_roles(settings, "otter", [Role.PUBLISHER, Role.OPERATOR])
    assert both.rights["read"] == sorted(rabbitmq_rights(Role.OPERATOR, settings).read)
    assert both.lines[0] == "rabbitmqctl add_user otter"
    assert "set_permissions -p / otter '^$' " in both.lines[1]


def test_commands_quote_names_and_set_tags() -> None:
    rights = RabbitMQRights(tags=frozenset({"management"}))
    assert rights.commands("an otter", "my vhost") == [
        "rabbitmqctl add_user 'an otter'",
        "rabbitmqctl set_permissions -p 'my vhost' 'an otter' '^$' '^$' '^$'",
        "rabbitmqctl set_user_tags 'an otter' management",
    ]
