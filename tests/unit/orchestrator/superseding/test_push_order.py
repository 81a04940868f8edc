"""The order of two pushes, for any order of delivery."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.superseding.push_order import (
    CommitAncestry,
    OrderAnswers,
    OrderQuestion,
    Push,
    PushOrder,
    answer,
    push_order,
)
from solstice_orchestrator.superseding.seniority import Seniority

OLDER, NEWER = PushOrder.OLDER, PushOrder.NEWER


def push(commit: str, before: str | None = None, *, age: int = 0) -> Push:
    """A push of a commit onto another one."""
    return Push(
        run_id=f"run of {commit}",
        commit_sha=commit,
        before_sha=before,
        seniority=Seniority(requested_at=0.0, age=age),
    )


C3 = push("c3", "c2", age=5)


@pytest.mark.parametrize(
    ("late", "newest", "known", "expected"),
    [
        pytest.param(push("c4", "c3", age=6), C3, [], NEWER, id="the next one"),
        pytest.param(push("c2", "c1", age=6), C3, [], OLDER, id="the one before"),
        pytest.param(push("c4", "c3", age=1), C3, [], NEWER, id="the next one, by a clock that is behind"),
        pytest.param(push("c1", "c0", age=6), C3, [push("c2", "c1")], OLDER, id="two before"),
        pytest.param(push("c5", "c4", age=6), C3, [push("c4", "c3")], NEWER, id="two after"),
        pytest.param(push("c3", None, age=6), C3, [], NEWER, id="the same commit once more"),
        pytest.param(push("c3", None, age=4), C3, [], OLDER, id="the same commit, told late"),
        pytest.param(push("x", "y", age=6), C3, [], NEWER, id="unconnected: the one that asked last"),
        pytest.param(push("x", "y", age=4), C3, [], OLDER, id="unconnected: the one that asked first"),
        pytest.param(push("c2", "c3", age=6), C3, [], NEWER, id="back and forth: the one that asked last"),
        pytest.param(
            push("c1", "c3", age=4),
            C3,
            [push("c1", "c0"), push("c2", "c1")],
            NEWER,
            id="put back by force: it says what it took away",
        ),
        pytest.param(push("c1", None, age=6), push("x", None, age=5), [], NEWER, id="made again"),
    ],
)
def test_links_between_pushes_take_precedence_over_times(
    late: Push, newest: Push, known: Sequence[Push], expected: PushOrder
) -> None:
    assert push_order(late, newest, known, None) is expected


@pytest.mark.parametrize("age", [4, 6], ids=["asked first", "asked last"])
@pytest.mark.parametrize("answered", [OLDER, NEWER, None])
def test_the_repository_is_asked_where_they_do_not_say(answered: PushOrder | None, age: int) -> None:
    late = push("x", "y", age=age)
    question = push_order(late, C3, [], {})
    assert question == OrderQuestion(commit_sha="x", before_sha="y", newest_sha="c3")
    by_time = NEWER if age == 6 else OLDER
    assert push_order(late, C3, [], {question: answered}) is (answered or by_time)


@pytest.mark.parametrize("late", [push("c4", "c3", age=6), push("c2", "c1", age=6), push("c3", age=6)])
def test_nothing_is_asked_where_it_is_known(late: Push) -> None:
    assert isinstance(push_order(late, C3, [], {}), PushOrder)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        pytest.param(CommitAncestry(now="late"), NEWER, id="it is what the branch points at"),
        pytest.param(CommitAncestry(now="late", in_newest=True), NEWER, id="put back by force"),
        pytest.param(CommitAncestry(now="newest"), OLDER, id="the newest still is"),
        pytest.param(CommitAncestry(now="newest", has_newest=True), OLDER, id="and was put back by force"),
        pytest.param(CommitAncestry(now="x", in_newest=True), OLDER, id="in the newest one's history"),
        pytest.param(CommitAncestry(now="x", has_newest=True), NEWER, id="the newest one is in its history"),
        pytest.param(CommitAncestry(now=None, in_newest=True), OLDER, id="the branch is gone"),
        pytest.param(CommitAncestry(now="x", in_newest=True, goes_back=True), None, id="went back, and on"),
        pytest.param(CommitAncestry(now="x"), None, id="neither"),
        pytest.param(CommitAncestry(now=None), None, id="nothing is known"),
    ],
)
def test_what_the_repository_says(history: CommitAncestry, expected: PushOrder | None) -> None:
    question = OrderQuestion(commit_sha="late", before_sha="b", newest_sha="newest")
    assert answer(question, history) is expected


@dataclass
class Branch:
    """A branch's real history: commits with their parents, and the pushes in order."""

    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pushes: list[tuple[str, str | None]] = field(default_factory=list)

    def holds(self, newer: str, older: str) -> bool:
        todo, seen = [newer], set[str]()
        while todo:
            commit = todo.pop()
            if commit not in seen:
                seen.add(commit)
                todo += self.parents.get(commit, ())
        return older in seen

    def history(self, question: OrderQuestion, *, gone: bool) -> CommitAncestry:
        before = question.before_sha
        return CommitAncestry(
            now=None if gone else self.pushes[-1][0],
            in_newest=self.holds(question.newest_sha, question.commit_sha),
            has_newest=self.holds(question.commit_sha, question.newest_sha),
            goes_back=before is not None and self.holds(before, question.commit_sha),
        )

    def newest(self, order: Sequence[int], *, gone: bool = False) -> list[int]:
        """The newest push after each delivery, in this order."""
        known: list[Push] = []
        leads: list[int] = []
        for age, place in enumerate(order):
            commit, before = self.pushes[place]
            pushed = push(commit, before, age=age)
            if not leads or self._is_newer(pushed, known[order.index(leads[-1])], known, gone=gone):
                leads.append(place)
            else:
                leads.append(leads[-1])
            known.append(pushed)
        return leads

    def _is_newer(self, pushed: Push, newest: Push, known: Sequence[Push], *, gone: bool) -> bool:
        answers: dict[OrderQuestion, PushOrder | None] = {}
        while isinstance(found := push_order(pushed, newest, known, answers), OrderQuestion):
            answers[found] = answer(found, self.history(found, gone=gone))
        return found is NEWER


@st.composite
def branches(draw: st.DrawFn, *, forced: bool) -> Branch:
    """Generate pushes of one to three commits or a merge each.

    `forced` ones also leave commits behind, or recreate the branch.
    """
    branch = Branch(parents={"c0": ()}, pushes=[])
    at: str | None = draw(st.sampled_from(["c0", None]))
    for number in range(1, draw(st.integers(2, 7))):
        start = at or "c0"
        before = at
        if forced and draw(st.booleans()):
            start = draw(st.sampled_from(sorted(branch.parents)))
            before = draw(st.sampled_from([at, None]))
        for step in range(draw(st.integers(1, 3))):
            commit = f"c{number}.{step}"
            branch.parents[commit] = (start,)
            if draw(st.booleans()):
                branch.parents[f"{commit} side"] = ("c0",)
                branch.parents[commit] = (start, f"{commit} side")
            start = commit
        branch.pushes.append((start, before))
        at = start
    return branch


@given(branches(forced=True), st.data())
def test_after_all_answers_the_last_push_is_the_newest(branch: Branch, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(branch.pushes))))
    assert branch.newest(order)[-1] == len(branch.pushes) - 1


@given(branches(forced=False), st.data(), st.booleans())
def test_no_older_push_takes_the_lead_of_a_newer_one(branch: Branch, data: st.DataObject, gone: bool) -> None:
    order = data.draw(st.permutations(range(len(branch.pushes))))
    leads = branch.newest(order, gone=gone)
    assert leads == [max(order[: age + 1]) for age in range(len(order))]


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 5)), min_size=2, max_size=8))
def test_any_query_gets_an_answer(age: list[tuple[int, int | None]]) -> None:
    pushes = [
        push(str(commit), None if before is None else str(before), age=number)
        for number, (commit, before) in enumerate(age)
    ]
    late, newest, *known = pushes
    known_order: Mapping[OrderQuestion, PushOrder | None] | OrderAnswers = {}
    found = push_order(late, newest, known, known_order)
    if isinstance(found, OrderQuestion):
        found = push_order(late, newest, known, {found: None})
    assert isinstance(found, PushOrder)
    assert isinstance(push_order(late, newest, known, None), PushOrder)
