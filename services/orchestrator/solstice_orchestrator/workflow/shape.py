"""Checks on the nodes of a workflow file; each passes or raises. Pure.

The error names the problem and its position.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue, SourcePosition

MAX_TIMEOUT_SECONDS: Final = 24 * 3600.0
MAX_LINE: Final = 100

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DURATION: Final = re.compile(
    r"(?:(?P<h>[0-9]{1,4})h)?(?:(?P<m>[0-9]{1,5})m)?(?:(?P<s>[0-9]{1,6}(?:\.[0-9]{1,3})?)s)?"
)


def text(value: KdlValue, what: str) -> str:
    """Return the value, which must be text."""
    plain(value.annotation, value.position)
    if not isinstance(value.value, str):
        shown = value.written.removeprefix("#") if value.value is not None else ""
        raise value.position.problem(f'{what} must be text; write it in quotes: "{shown}"')
    if "\x00" in value.value:
        raise value.position.problem(f"{what} may not hold the character U+0000")
    return value.value


def line(value: KdlValue, what: str) -> str:
    """Return one line of text for people, stripped of white space."""
    written = text(value, what).strip()
    if not 0 < len(written) <= MAX_LINE or _CONTROL.search(written):
        raise value.position.problem(f"{what} has between 1 and {MAX_LINE} characters, all on one line")
    return written


def identifier(
    value: KdlValue,
    what: str,
    longest: int,
    *,
    fill: Callable[[str, SourcePosition], str] = lambda written, _: written,
) -> str:
    """Return a name that is valid in an address, a file name and a message.

    It is checked after `fill` has replaced its placeholders.
    """
    name = fill(text(value, what), value.position)
    if not _IDENTIFIER.fullmatch(name) or len(name) > longest:
        raise value.position.problem(
            f"{name[:80]!r} cannot be {what}: write at most {longest} letters, digits, '.', '_' and '-', "
            "first a letter or digit"
        )
    return name


def one_of(value: KdlValue, what: str, known: Sequence[str]) -> str:
    """Return the value, which must be one of `known`."""
    word = text(value, what)
    if word not in known:
        listed = " or ".join(f'"{each}"' for each in known)
        raise value.position.problem(f"{what} is {listed}, not {word[:40]!r}{did_you_mean(word, known)}")
    return word


def whole_number(value: KdlValue, what: str, largest: int) -> int:
    """Return the value, which must be a whole number from 0 to `largest`."""
    plain(value.annotation, value.position)
    number = value.value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= largest:
        raise value.position.problem(
            f"{what} is a whole number from 0 to {largest}, without quotes: {what}={largest}"
        )
    return number


def truth(value: KdlValue, rule: str) -> bool:
    """Return the value, which must be #true or #false; `rule` is the error text otherwise."""
    plain(value.annotation, value.position)
    if not isinstance(value.value, bool):
        raise value.position.problem(rule)
    return value.value


def duration(value: KdlValue, *, longest: float = MAX_TIMEOUT_SECONDS) -> float:
    """Seconds, read from `90s`, `30m` or `1h30m`."""
    if isinstance(value.value, int | float) and not isinstance(value.value, bool):
        is_whole = isinstance(value.value, int) and value.value > 0
        example = f'"{value.value}s" or "{value.value}m"' if is_whole else '"90s", "30m" or "1h30m"'
        raise value.position.problem(f"a timeout needs a unit, in quotes: {example}")
    written = text(value, "timeout")
    match = _DURATION.fullmatch(written)
    if not match or not written:
        raise value.position.problem(f'{written[:40]!r} is no duration; write "90s", "30m" or "1h30m"')
    seconds = int(match["h"] or 0) * 3600 + int(match["m"] or 0) * 60 + float(match["s"] or 0)
    if not 0 < seconds <= longest:
        raise value.position.problem(f"a timeout here is longer than 0s and at most {longest / 3600:g}h")
    return seconds


def plain(annotation: str | None, position: SourcePosition) -> None:
    """Check that there is no type annotation."""
    if annotation is not None:
        raise position.problem(f"the type ({annotation}) means nothing here; leave it out")


def expect_node(node: KdlNode, known: Sequence[str], where: str) -> None:
    """Check that the node is one of `known`."""
    if node.name not in known:
        listed = ", ".join(f"'{name}'" for name in known)
        raise node.position.problem(
            f"{node.name!r} is not known {where}{did_you_mean(node.name, known)}; known: {listed}"
        )
    plain(node.annotation, node.position)


def expect_arguments(node: KdlNode, count: int, rule: str) -> None:
    """Check the number of the node's arguments; `rule` is the error text otherwise."""
    if len(node.arguments) > count:
        raise node.arguments[count].position.problem(rule)
    if len(node.arguments) < count:
        raise node.position.problem(rule)


def expect_childless(node: KdlNode) -> None:
    """Check that the node has no block."""
    if node.children:
        raise node.children[0].position.problem(f"{node.name!r} takes no block")


def children(node: KdlNode, known: Sequence[str], where: str, *, once: Collection[str]) -> Iterator[KdlNode]:
    """Yield the nodes of the block, each known; those in `once` occur at most once."""
    seen: set[str] = set()
    for child in node.children:
        expect_node(child, known, where)
        if child.name in once and child.name in seen:
            advice = "put all into one block" if child.children else "once is enough"
            raise child.position.problem(f"{child.name!r} stands here a second time; {advice}")
        seen.add(child.name)
        yield child


def properties(node: KdlNode, known: Sequence[str]) -> Mapping[str, KdlValue]:
    """Return the properties by name, each known and given once."""
    found: dict[str, KdlValue] = {}
    for item in node.properties:
        if item.name not in known:
            listed = ", ".join(f"'{name}'" for name in known) or "none"
            raise item.position.problem(
                f"{node.name!r} has no property {item.name!r}{did_you_mean(item.name, known)}; known: {listed}"
            )
        if item.name in found:
            raise item.position.problem(f"{item.name!r} is given twice")
        found[item.name] = item.value
    return found


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A suggestion for an error about `name`, when a known name is close to it."""
    close = difflib.get_close_matches(name[:100].lower().replace("_", "-"), known, n=1, cutoff=0.6)
    return f" (did you mean {str(close[0])!r}?)" if close else ""
