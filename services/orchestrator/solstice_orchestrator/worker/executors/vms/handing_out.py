"""Write the script that hands the files of artifacts out of a virtual machine (VM). Pure.

It may hand out more than fits: the patterns themselves are for our side. What surely does not fit stays in the VM.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from solstice_common.values.globs import plain_parts
from solstice_orchestrator.domain.handing_spec import OutputSpec
from solstice_orchestrator.domain.jobs import ArtifactSpec

BODY: Final = Path(__file__).with_name("guest_artifacts.sh")
SCRIPT: Final = "artifacts.sh"
"""The name of the script, by which it knows itself."""
_SPECIAL: Final = re.compile(r"\*\*/|\*+|\?|\[!?\]?[^\]]*\]")
"""What may stand for other characters in a pattern of ours (`values.globs`)."""


def handing_out(
    artifacts: Sequence[ArtifactSpec], outputs: Sequence[OutputSpec] = (), temporary: str = ""
) -> str:
    """Return the script; it runs in the workspace.

    `temporary` is the folder with the file of outputs.
    """
    files = [ArtifactSpec(name="", path=path) for output in outputs for path in output.files]
    folder = [f"outputs={shlex.quote(temporary)}"] if outputs else []
    return "\n".join([BODY.read_text(encoding="utf-8"), *folder, *_lines([*artifacts, *files]), ""])


def _lines(artifacts: Sequence[ArtifactSpec]) -> Iterator[str]:
    places = {tuple(plain_parts(each.path)) for each in artifacts}
    everywhere = () in places
    yield "set --"
    for start in ["."] if everywhere else sorted({shlex.quote(f"./{place[0]}") for place in places}):
        yield f'found {start} && set -- "$@" {start}'
    elsewhere = "" if everywhere else f"\\( -type d ! {_any_of(_folders(places))} -prune \\) -o "
    yield f'[ $# = 0 ] || set -- "$@" {elsewhere}! -type d {_any_of(_paths(artifacts))}'
    yield 'hand_out "$@"'


def _any_of(patterns: Iterable[str]) -> str:
    tests = " -o ".join(f"-path {shlex.quote(each)}" for each in dict.fromkeys(patterns))
    return f"\\( {tests} \\)"


def _folders(places: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Return patterns of the folders that are searched."""
    for place in sorted(places):
        yield from _way(place)
        yield f"./{_literal('/'.join(place))}/*"


def _paths(artifacts: Sequence[ArtifactSpec]) -> Iterator[str]:
    """Return patterns of what fits or is in its way, and maybe more."""
    for each in artifacts:
        place = plain_parts(each.path)
        yield from _way(place)
        is_plain = "/".join(place) == each.path
        yield f"./{_literal(each.path)}/*" if is_plain else f"./{wider(each.path)}"


def _way(place: Sequence[str]) -> Iterator[str]:
    for end in range(1, len(place) + 1):
        yield "./" + _literal("/".join(place[:end]))


def wider(pattern: str) -> str:
    """Return a pattern of `find` that matches what fits ours, and maybe more."""
    # A star of `find` matches slashes, too; and a set or `?` may be one character here and several bytes there.
    pieces = _SPECIAL.split(pattern)
    return re.sub(r"\*+", "*", "*".join(_literal(piece) for piece in pieces))


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\")
