"""Which right a refusal of Redis is about."""

import pytest

from solstice_common.broker.redis_streams.redis_consumer_scripts import SETTLE, TAKE
from solstice_common.broker.redis_streams.redis_denials import (
    denied_command,
    denied_in_script,
    is_denied,
)
from solstice_common.broker.redis_streams.redis_queue_scripts import DEPTH
from solstice_common.broker.redis_streams.redis_scripts import RedisScript

REFUSALS = (
    "this user has no permissions to run the 'get' command",
    "No permissions to access a key",
    "The user executing the script can't run this command or subcommand script: ab, on @user_script:1.",
    "ACL failure in script: No permissions to access a key script: ab, on @user_script:1.",
    "DENIED xgroup|create solstice.jobs.v1",
)


@pytest.mark.parametrize("why", REFUSALS)
def test_refusals_of_all_versions_are_recognised(why: str) -> None:
    assert is_denied(why)


@pytest.mark.parametrize("why", ["OOM command not allowed", "NOGROUP there is no stream", "WRONGTYPE"])
def test_other_errors_are_not(why: str) -> None:
    assert not is_denied(why)


def test_command_is_the_one_that_the_server_names() -> None:
    assert denied_command("no permissions", ["HGETALL", "solstice:topology"]) == (
        "hgetall",
        "key solstice:topology",
    )
    setname = "this user has no permissions to run the 'client|setname' command"
    assert denied_command(setname, ["PING"]) == ("client|setname", "server")


@pytest.mark.parametrize(
    ("script", "code", "expected"),
    [
        (TAKE, "'XREADGROUP', 'GROUP'", ("xreadgroup", "key ci:q")),
        (TAKE, "'ZADD', key .. ':consumers'", ("zadd", "key ci:q:consumers")),
        (TAKE, "'XGROUP', 'DELCONSUMER'", ("xgroup|delconsumer", "key ci:q")),
        (SETTLE, "'XADD', prefix .. target", ("xadd", "key of the dead letters of q")),
        (DEPTH, "'HEXISTS', topology", ("hexists", "key ci:solstice:topology")),
        (DEPTH, "'TIME'", ("time", "server")),
    ],
)
def test_line_of_a_script_tells_the_command_and_its_key(
    script: RedisScript, code: str, expected: tuple[str, str]
) -> None:
    line = next(number for number, text in enumerate(script.source.splitlines(), 1) if f"call({code}" in text)
    why = f"ACL failure in script: No permissions to access a key script: ab, on @user_script:{line}."
    assert denied_in_script(why, script, ["ci:", "q"]) == expected


def test_line_that_is_not_there_is_no_crash() -> None:
    assert denied_in_script("ACL failure", TAKE, ["", "q"]) == ("evalsha", "server")
    assert denied_in_script("on @user_script:99999.", TAKE, ["", "q"]) == ("evalsha", "server")
