"""The users of roles on each broker, as a table and as commands."""

import re
import shlex
from pathlib import Path

import pytest

from solstice_common.broker.jetstream.jetstream_names import presence_subject, stream_of
from solstice_common.errors import ConfigurationError
from solstice_common.rights.nats_rights import user_entry
from solstice_common.rights.role_users import users_of_roles
from solstice_common.rights.roles import Role
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, jobs_route, split_jobs_route

URLS = ("amqp://host/ci", "redis://host/0", "nats://host")
JOBS = jobs_route(BrokerSettings())


@pytest.mark.parametrize("url", URLS)
def test_user_of_two_roles_has_the_rights_of_both(url: str) -> None:
    settings = BrokerSettings(amqp_url=url)
    both = users_of_roles(settings, "otter", [Role.PUBLISHER, Role.MONITORING])
    for role in (Role.PUBLISHER, Role.MONITORING):
        one = users_of_roles(settings, "otter", [role]).rights
        assert all({*names} <= {*both.rights[kind]} for kind, names in one.items())


@pytest.mark.parametrize("url", URLS)
def test_classes_of_priority_bring_their_names(url: str) -> None:
    split = BrokerSettings(amqp_url=url, amqp_priorities="split")
    lines = "\n".join(users_of_roles(split, "otter", [Role.ORCHESTRATOR]).lines)
    assert "jobs.v1.critical" in lines.replace("\\", "")
    one = "\n".join(users_of_roles(BrokerSettings(amqp_url=url), "otter", [Role.ORCHESTRATOR]).lines)
    assert "jobs.v1.critical" not in one


@pytest.mark.parametrize("url", URLS)
def test_no_two_roles_have_the_same_rights(url: str) -> None:
    users = [users_of_roles(BrokerSettings(amqp_url=url), "otter", [role]) for role in Role]
    assert len({str(user.rights) for user in users}) == len(Role)
    assert all(any(user.rights.values()) for user in users)


@pytest.mark.parametrize(
    ("role", "queues"),
    [
        (Role.FORGE_INTEGRATION, {STATUSES.queue}),
        (Role.ORCHESTRATOR, {JOBS.queue, CANCELS.queue}),
        (Role.PUBLISHER, set()),
        (Role.OPERATOR, {JOBS.dlq, CANCELS.dlq, STATUSES.dlq}),
        (Role.ADMIN, set()),
        (Role.MONITORING, set()),
    ],
)
def test_queues_that_a_role_reads(role: Role, queues: set[str]) -> None:
    nats = users_of_roles(BrokerSettings(amqp_url="nats://host"), "otter", [role]).rights["subscribe"]
    assert {*nats} == {"_INBOX.otter.>", *(presence_subject(name) for name in queues)}
    redis = users_of_roles(BrokerSettings(amqp_url="redis://host/0"), "otter", [role]).rights
    read = [keys for commands, keys in redis.items() if "xreadgroup" in commands]
    assert {name for keys in read for name in keys} == queues


@pytest.mark.parametrize("role", [Role.FORGE_INTEGRATION, Role.ORCHESTRATOR])
def test_services_see_queues_of_classes_that_another_setting_left(role: Role) -> None:
    settings = BrokerSettings(amqp_url="nats://host")
    seen = {each.rpartition(".")[2] for each in users_of_roles(settings, "otter", [role]).rights["publish"]}
    left = split_jobs_route(settings).classes.values()
    assert {stream_of(each.queue) for each in left} <= seen
    assert seen.isdisjoint(stream_of(each.dlq) for each in left)


def test_operator_waits_for_no_dead_letter() -> None:
    settings = BrokerSettings(amqp_url="redis://host/0")
    waits = {
        role
        for role in Role
        if any("bzpopmin" in commands for commands in users_of_roles(settings, "otter", [role]).rights)
    }
    assert waits == {Role.FORGE_INTEGRATION, Role.ORCHESTRATOR}


def test_prefix_stands_before_every_key_of_redis() -> None:
    settings = BrokerSettings(amqp_url="redis://host/0?prefix=ci:")
    (line,) = users_of_roles(settings, "otter", [Role.ORCHESTRATOR]).lines
    assert line.startswith("redis-cli ACL SETUSER otter reset on '>PASSWORD' resetkeys")
    assert line.count("~") == line.count("~ci:") > 0
    (line,) = users_of_roles(BrokerSettings(amqp_url="redis://host/0"), "otter", [Role.ORCHESTRATOR]).lines
    assert " ~solstice.jobs.v1 " in line


def test_a_shell_passes_every_rule_of_redis_as_it_is() -> None:
    (line,) = users_of_roles(BrokerSettings(amqp_url="redis://host/0"), "an otter", [Role.PUBLISHER]).lines
    words = list(shlex.shlex(line, posix=True, punctuation_chars=True))
    assert "|" not in words
    assert shlex.split(line)[3:7] == ["an otter", "reset", "on", ">PASSWORD"]
    assert {"+client|setname", "(+xadd ~solstice.jobs.v1)"} <= {*shlex.split(line)}


@pytest.mark.parametrize("role", [Role.ORCHESTRATOR, Role.OPERATOR, Role.FORGE_INTEGRATION])
def test_role_that_counts_a_stream_sees_what_of_it_is_pending(role: Role) -> None:
    rights = users_of_roles(BrokerSettings(amqp_url="redis://host/0"), "otter", [role]).rights
    keys = {
        command: {key for commands, names in rights.items() if command in commands.split() for key in names}
        for command in ("xlen", "xpending")
    }
    assert keys["xlen"]
    assert keys["xlen"] <= keys["xpending"]


def test_user_of_nats_without_a_subject_may_use_none() -> None:
    assert '    publish: { deny: ">" },' in user_entry("otter", "p", {"publish": [], "subscribe": ["a"]})


def test_embedded_broker_has_no_users() -> None:
    with pytest.raises(ConfigurationError, match="no users"):
        users_of_roles(BrokerSettings(amqp_url="sqlite:///broker.db"), "otter", [Role.ADMIN])


@pytest.mark.parametrize(
    "url",
    [
        "amqp://otter:stone[s]@host/ci",
        "amqp:/otter:stones@host/ci",
        "amqp:otter:stones@host/ci",
        "redis://otter:stone[s]@host/0",
        "redis://otter:[stones@host/0",
    ],
)
def test_url_that_cannot_be_taken_apart_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="AMQP_URL: ") as raised:
        users_of_roles(BrokerSettings(amqp_url=url), "otter", [Role.ADMIN])
    assert "stone" not in str(raised.value)


def test_commands_of_the_documentation_are_those_that_are_printed() -> None:
    page = Path("docs/operations/rabbitmq.md").read_text()
    shown = re.findall(r"^rabbitmqctl set_permissions -p solstice (\S+) .*$", page, re.MULTILINE)
    settings = BrokerSettings(amqp_url="amqp://HOST/solstice")
    assert shown == ["orchestrator", "publisher"]
    for role in map(Role, shown):
        assert "\n".join(users_of_roles(settings, role.value, [role]).lines) in page
