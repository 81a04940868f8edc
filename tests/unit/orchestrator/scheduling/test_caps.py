"""Caps of running jobs per repository."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.scheduling.caps import Caps, parse_caps, unused


@pytest.mark.parametrize(
    ("text", "caps"),
    [
        ("", Caps()),
        ("*=8", Caps(default=8)),
        ("acme/app=2", Caps(of={"acme/app": 2})),
        (" *=8 , acme/app=2,", Caps(of={"acme/app": 2}, default=8)),
        ("https://forge.example/a.git=1", Caps(of={"https://forge.example/a.git": 1})),
        ("acme/app=0", Caps(of={"acme/app": 0})),
    ],
    ids=["none", "all", "one", "both", "by its URL", "shut out"],
)
def test_caps_are_read(text: str, caps: Caps) -> None:
    assert parse_caps(text) == caps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acme/app", "'acme/app' is not NAME=NUMBER"),
        ("acme/app=", "is not NAME=NUMBER"),
        ("=3", "is not NAME=NUMBER"),
        ("acme/app=-1", "is not NAME=NUMBER"),
        ("a=1,a=2", "'a' stands there twice"),
    ],
)
def test_what_is_no_cap_is_reported(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_caps(text)


@pytest.mark.parametrize(
    ("caps", "running", "left"),
    [
        (Caps(), {"acme/app": 50}, {}),
        (Caps(default=8), {"acme/app": 3}, {"acme/app": 5, "reef/tide": 8}),
        (Caps(of={"acme/app": 2}), {"acme/app": 1, "reef/tide": 70}, {"acme/app": 1}),
        (Caps(of={"acme/app": 2}, default=1), {"acme/app": 5}, {"acme/app": 0, "reef/tide": 1}),
    ],
    ids=["none", "all", "one", "lowered below what runs"],
)
def test_room_is_what_the_cap_leaves(caps: Caps, running: dict[str, int], left: dict[str, int]) -> None:
    assert unused(caps, running, [*running, "reef/tide"]) == left


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        caps = parse_caps(text)
    except ValueError:
        return
    assert caps.any is bool(text.strip(", \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0").strip())
