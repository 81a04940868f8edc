"""Patterns of names: matching, and the refusal of meaningless ones."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.values.globs import InvalidGlob, compiled, fits, plain_parts

TABLE = [
    ("main", "main", True),
    ("main", "mainline", False),
    ("main", "Main", False),
    ("river/*", "river/otter", True),
    ("river/*", "river/otter/cub", False),
    ("river/**", "river/otter/cub", True),
    ("river/**", "river", False),
    ("**", "", True),
    ("**/test_*.py", "test_a.py", True),
    ("**/test_*.py", "a/b/test_a.py", True),
    ("**/test_*.py", "a/b/xtest_a.py", False),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("a/**/b", "axb", False),
    ("a/**/b/**/c", "a/x/b/b/y/c", True),
    ("a/**/b/**/c", "a/x/c", False),
    ("a/**/**/b", "a/b", True),
    ("src/**", "src/", True),
    ("v**", "v1/2", False),
    ("a**/b", "ab", False),
    ("a**/b", "axx/b", True),
    ("*a*b*", "xaxxbx", True),
    ("*a*b*", "xbxxax", False),
    ("v?.?", "v1.2", True),
    ("v?", "v/", False),
    ("v[0-9]", "v7", True),
    ("v[!0-9]", "v7", False),
    ("v[!0-9]x", "v/x", False),
    ("[]]", "]", True),
    ("[a^]", "^", True),
    ("[a-]", "-", True),
    ("[*]", "*", True),
    ("a.b", "axb", False),
    ("*", "a\nb", True),
]


@pytest.mark.parametrize(("pattern", "name", "fitting"), TABLE)
def test_pattern_fits(pattern: str, name: str, *, fitting: bool) -> None:
    assert fits(name, [pattern]) is fitting


@pytest.mark.parametrize("pattern", ["", "a[b", "[", "[z-a]", "[]", "[!]", "[/]"])
def test_pattern_that_means_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidGlob):
        compiled(pattern)


@given(st.text(alphabet="ab/*?[]!-^.\\", max_size=12), st.text(alphabet="ab/-.", max_size=8))
def test_any_pattern_either_means_something_or_is_refused(pattern: str, name: str) -> None:
    with contextlib.suppress(InvalidGlob):
        fits(name, [pattern])


@given(st.text(alphabet="ab./- ", min_size=1, max_size=12))
def test_name_without_marks_fits_itself_and_everything_fits_it(name: str) -> None:
    assert fits(name, [name])
    assert fits(name, ["**"])
    assert fits(name, ["*"]) is ("/" not in name)


def meant(pattern: str, name: str) -> bool:
    """The documented rule, implemented without regard to speed."""

    def parts_fit(pattern_parts: list[str], given: list[str]) -> bool:
        if not pattern_parts:
            return not given
        if pattern_parts[0] == "**":
            # At the end: everything below, at least one part.
            rest = pattern_parts[1:]
            least = 1 if not rest else 0
            return any(parts_fit(rest, given[count:]) for count in range(least, len(given) + 1))
        return (
            bool(given) and part_fits(pattern_parts[0], given[0]) and parts_fit(pattern_parts[1:], given[1:])
        )

    def part_fits(pattern_parts: str, given: str) -> bool:
        if not pattern_parts:
            return not given
        if pattern_parts[0] == "*":
            return any(part_fits(pattern_parts[1:], given[count:]) for count in range(len(given) + 1))
        return bool(given) and pattern_parts[0] in {"?", given[0]} and part_fits(pattern_parts[1:], given[1:])

    return parts_fit(pattern.split("/"), name.split("/"))


PARTS = st.sampled_from(["**", "*", "a", "b", "?", "*a", "a*b", "*a*b*", "ab", "?*"])


@given(
    st.lists(PARTS, min_size=1, max_size=5).map("/".join),
    st.lists(st.text(alphabet="ab", max_size=4), min_size=1, max_size=6).map("/".join),
)
def test_a_pattern_matches_what_its_documentation_says(pattern: str, name: str) -> None:
    assert fits(name, [pattern]) is meant(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("/".join(["**", "a"] * 12), "a/" * 20_000 + "b"),
        ("*a" * 12 + "c", "a" * 40_000),
        ("**/" + "*a" * 6 + "/**/c", "/".join(["aaaaaaaaaaaaaaaa"] * 3000)),
    ],
    ids=["parts", "characters", "both"],
)
def test_name_that_a_stranger_made_long_is_decided_nevertheless(pattern: str, name: str) -> None:
    """By looking again at every place where it might have begun, not within a lifetime."""
    assert not fits(name, [pattern])


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("a/b", ["a", "b"]),
        ("a/b/**", ["a", "b"]),
        ("a/b?/c", ["a"]),
        ("[a]/b", []),
        ("**", []),
        ("a]/b", ["a]", "b"]),
    ],
)
def test_the_plain_beginning_of_a_pattern_ends_before_its_first_special_part(
    pattern: str, parts: list[str]
) -> None:
    assert plain_parts(pattern) == parts
