"""Forges' answers about deliveries become values of the right kind, or are unreadable."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import Source
from solstice_forge.remote.http import DIALECTS
from solstice_forge.remote.protocol import ChangeRequestHead, ForgeAccount, ForgeCall

SHA = "a1" * 20
REPOSITORY = {"full_name": "river/app", "clone_url": "https://forge.example/river/app.git"}
SIDE = {"ref": "main", "sha": SHA, "repo": REPOSITORY, "repo_id": 1}
GOOD: list[Any] = [
    {"sha": SHA, "commit": {"id": SHA, "sha": SHA}},
    {"state": "open", "head": SIDE, "base": SIDE},
    {
        "sha": SHA,
        "state": "opened",
        "source_project_id": 1,
        "target_project_id": 1,
        "source_branch": "spring",
        "target_branch": "main",
    },
    {"permission": "write", "access_level": 30},
]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just(SHA),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def answers(draw: st.DrawFn) -> Any:
    """An answer of a forge with some values replaced or removed; or any other document."""
    good = draw(st.sampled_from(GOOD))
    if draw(st.booleans()):
        return draw(ODD)
    changed: dict[str, Any] = {}
    for name, value in good.items():
        match draw(st.sampled_from(["keep", "keep", "keep", "replace", "remove", "inside"])):
            case "replace":
                changed[name] = draw(ODD)
            case "inside" if isinstance(value, dict):
                changed[name] = {**value, draw(st.sampled_from(sorted(value))): draw(ODD)}
            case "remove":
                pass
            case _:
                changed[name] = value
    return changed


def outcome(call: ForgeCall[Any] | None, document: Any) -> Any:
    assert call is not None
    try:
        return call.read(document)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # `Remote` treats this as an answer that cannot be read


@pytest.mark.parametrize("origin", sorted(DIALECTS))
@given(document=answers())
def test_any_answer_is_what_was_asked_for_or_cannot_be_read(origin: Source, document: Any) -> None:
    dialect = DIALECTS[origin]
    for ref in ("refs/heads/main", "refs/tags/v1"):
        assert outcome(dialect.find_commit("river/app", ref), document) in {None, SHA}
    head = outcome(dialect.find_head("river/app", 3), document)
    if head is not None:
        assert isinstance(head, ChangeRequestHead)
        assert head.commit_sha == SHA
        assert head.is_fork in {True, False, None}
        assert isinstance(head.is_open, bool)
        names: list[Any] = [head.base_ref, head.head_ref, head.head_repo_url]
        assert all(name is None or (isinstance(name, str) and name) for name in names)
    assert outcome(dialect.may_write("river/app", ForgeAccount(login="ada", id=7)), document) in {
        True,
        False,
        None,
    }


def test_merge_request_whose_source_is_gone_is_a_forks() -> None:
    gone = {**GOOD[2], "source_project_id": None, "target_project_id": None}
    head = outcome(DIALECTS[Source.GITLAB].find_head("river/app", 3), gone)
    assert isinstance(head, ChangeRequestHead)
    assert head.is_fork is True
