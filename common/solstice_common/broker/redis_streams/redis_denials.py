"""Reads which right of its ACL a user of Redis lacks, from the server's refusal. Pure.

A refusal inside a script names neither the key nor, before 7.2, the command; it has the number of the script's line.
"""

import re
from collections.abc import Sequence
from typing import Final

from solstice_common.broker.redis_streams.redis_scripts import RedisScript

Word = bytes | str | float
DENIED: Final = re.compile(
    r"no permissions to (?:run|access)|user executing the script can't|ACL failure in script", re.IGNORECASE
)
_COMMAND: Final = re.compile(r"run the '([^']+)' command")
_LINE: Final = re.compile(r"on @?user_script:(\d+)")
_NAMED: Final = re.compile(r"DENIED (\S+) (.+)")
"""How our scripts name a command and a key themselves."""
_CALL: Final = re.compile(r"redis\.call\('([A-Z]+)'(?:, '([A-Z]+)')?")
_WITH_SUBCOMMAND: Final = frozenset({"xgroup", "xinfo"})
TOPOLOGY: Final = "solstice:topology"


def is_denied(why: str) -> bool:
    """Whether the server refused a command for lack of a right."""
    return DENIED.search(why) is not None or why.startswith("DENIED ")


def denied_command(why: str, words: Sequence[Word]) -> tuple[str, str]:
    """Return the right and the target of a refused command.

    The command has its key, if any, in front.
    """
    first, *rest = (word.decode() if isinstance(word, bytes) else str(word) for word in words)
    # A new connection first sends commands of its own, such as CLIENT SETNAME.
    named = _COMMAND.search(why)
    command = named[1].lower() if named else first.lower()
    keyed = rest and first.lower() == command and command != "evalsha"
    return command, f"key {rest[0]}" if keyed else "server"


def denied_in_script(why: str, script: RedisScript, arguments: Sequence[Word]) -> tuple[str, str]:
    """Return the right and the target of a refusal by a line of a script.

    The script's arguments begin with prefix and queue.
    """
    if named := _NAMED.match(why):
        return named[1].lower(), f"key {named[2]}"
    number, lines = _LINE.search(why), script.source.splitlines()
    line = lines[int(number[1]) - 1] if number and int(number[1]) <= len(lines) else ""
    call = _CALL.search(line)
    if call is None:
        return "evalsha", "server"
    command = call[1].lower()
    right = f"{command}|{call[2].lower()}" if command in _WITH_SUBCOMMAND else command
    return right, _target(command, line, str(arguments[0]), str(arguments[1]))


def _target(command: str, line: str, prefix: str, queue: str) -> str:
    if command == "time":
        return "server"
    if "topology" in line:
        return f"key {prefix}{TOPOLOGY}"
    if "prefix .. target" in line:
        return f"key of the dead letters of {queue}"
    suffix = next((each for each in (":consumers", ":new") if each in line), "")
    return f"key {prefix}{queue}{suffix}"
