"""The script that hands files out of a VM asks for all that fits."""

import re
import shlex

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from solstice_common.values.globs import InvalidGlob, compiled
from solstice_orchestrator.domain.jobs import ArtifactSpec
from solstice_orchestrator.worker.executors.vms.handing_out import BODY, handing_out, wider


def lines(*paths: str) -> list[str]:
    script = handing_out([ArtifactSpec(name="x", path=path) for path in paths])
    return script.removeprefix(BODY.read_text()).split("\n")[1:-1]


def test_only_the_places_of_artifacts_are_searched() -> None:
    _, *starts, search, _ = lines("dist/a/**", "other")
    assert starts == ['found ./dist && set -- "$@" ./dist', 'found ./other && set -- "$@" ./other']
    places = "-path ./dist -o -path ./dist/a -o -path './dist/a/*' -o -path ./other -o -path './other/*'"
    assert f"\\( -type d ! \\( {places} \\) -prune \\) -o ! -type d \\( {places} \\)" in search


@pytest.mark.parametrize("path", ["**/a", "*", "[ab]/x", "?/**"])
def test_a_pattern_without_a_plain_beginning_searches_everything(path: str) -> None:
    assert lines("dist/**", path)[1] == 'found . && set -- "$@" .'
    assert "-prune" not in "".join(lines("dist/**", path))


def test_no_path_of_a_workflow_is_code() -> None:
    path = "it's; $(id)`id`\nx y"
    words = shlex.split("\n".join(lines(path)))
    assert {word for word in words if "id" in word} == {f"./{path}", f"./{path}/*"}


def find_matches(pattern: str, name: str) -> bool:
    """Whether `find -path` with a pattern of ours matches: stars, and characters behind a backslash."""
    tokens = re.findall(r"\\.|\*|[^\\*]", pattern, re.DOTALL)
    expression = "".join(".*" if each == "*" else re.escape(each[-1]) for each in tokens)
    return re.fullmatch(expression, name, re.DOTALL) is not None


PIECES = st.lists(
    st.sampled_from(["a", "b", ".", "\\", "*", "**", "?", "/", "[ab]", "[!a]", "[*]", "[]]", "é"]),
    min_size=1,
    max_size=7,
)
NAMES = st.lists(st.sampled_from(["a", "b", ".", "\\", "*", "/", "]", "é", "\n"]), min_size=1, max_size=8)


@given(PIECES.map("".join), NAMES.map("".join))
def test_all_that_fits_a_pattern_is_asked_for(pattern: str, name: str) -> None:
    # No workflow has a path with an empty part.
    assume(all(pattern.split("/")))
    try:
        fits = compiled(pattern).fullmatch(name)
    except InvalidGlob:
        return
    if fits:
        assert find_matches(f"./{wider(pattern)}", f"./{name}")
