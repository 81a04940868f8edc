"""The rights of a user compared with those of its roles, in words."""

import pytest

from solstice_common.broker.redis_streams.granted_commands import ARGUMENTS
from solstice_common.rights.rights_check import comparable_rights, rights_differences, targets_of
from solstice_common.rights.role_users import user_of, users_of_roles
from solstice_common.rights.roles import Role
from solstice_common.settings import BrokerSettings

RABBITMQ = BrokerSettings(amqp_url="amqp://host/ci")
PUBLISHER = users_of_roles(RABBITMQ, "otter", [Role.PUBLISHER])


def test_rights_on_the_same_targets_are_one_difference() -> None:
    (lacks, beyond) = rights_differences(PUBLISHER, {("read", "a"), ("write", "a")})
    assert lacks.object == "user otter"
    assert lacks.difference == "lacks the right 'write' on solstice.jobs"
    assert beyond.difference == "has the rights 'read', 'write' on a, which no role of it needs"
    assert "--role publisher --user otter" in beyond.remedy


def test_right_without_a_target_is_named_alone() -> None:
    redis = users_of_roles(BrokerSettings(amqp_url="redis://host/0"), "otter", [Role.PUBLISHER])
    (found,) = rights_differences(redis, redis.single - {("ping", "")})
    assert found.difference == "lacks the right 'ping'"
    assert targets_of({("ping", ""), ("xlen", "b"), ("xlen", "a")}) == {"ping": [], "xlen": ["a", "b"]}


def test_exactly_the_rights_of_the_roles_differ_in_nothing() -> None:
    assert rights_differences(PUBLISHER, PUBLISHER.single) == []


def test_every_right_on_every_object_of_rabbitmq_is_compared() -> None:
    rights = comparable_rights(RABBITMQ, "otter")
    assert {("configure", "amq.default"), ("read", "solstice.jobs"), ("tags", "administrator")} <= rights
    assert all(users_of_roles(RABBITMQ, "otter", [role]).single <= rights for role in Role)


def test_each_command_of_redis_has_its_arguments() -> None:
    redis = BrokerSettings(amqp_url="redis://host/0", amqp_priorities="split")
    assert {command for command, _ in comparable_rights(redis, "otter")} == {*ARGUMENTS}


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("amqp://otter:p@host/ci", "otter"),
        ("redis://host/0", None),
        ("nats://token@host", None),
        ("nats://otter@host?password_file=/p", "otter"),
    ],
)
def test_user_of_a_url_is_no_token(url: str, user: str | None) -> None:
    assert (user_of(url) or None) == user
