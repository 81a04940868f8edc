"""The node `checkout` says what a job finds of the repository."""

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.checkout_spec import ChangeCommit, CheckoutSpec, Submodules
from solstice_orchestrator.workflow import kdl
from solstice_orchestrator.workflow.checkout_node import NO_PROPERTIES, CheckoutProperties, read_checkout
from solstice_orchestrator.workflow.reader import parse_workflow


def read(text: str) -> CheckoutProperties:
    (node,) = kdl.read(text)
    return read_checkout(node)


def checkouts(text: str) -> list[CheckoutSpec | None]:
    return [job.checkout for job in parse_workflow(text.encode(), default_runs_on="linux").jobs]


@pytest.mark.parametrize(
    ("text", "spec"),
    {
        "checkout": CheckoutSpec(),
        "checkout depth=0 tags=#true submodules=#true lfs=#true ref=merge": CheckoutSpec(
            depth=0, tags=True, submodules=Submodules.DIRECT, lfs=True, ref=ChangeCommit.MERGE
        ),
        "checkout submodules=recursive": CheckoutSpec(submodules=Submodules.RECURSIVE),
        "checkout depth=1 tags=#false submodules=#false lfs=#false ref=head": CheckoutSpec(),
        "checkout none": None,
    }.items(),
)
def test_the_properties_say_what_is_checked_out(text: str, spec: CheckoutSpec | None) -> None:
    assert read(text).spec(NO_PROPERTIES) == spec


def test_a_job_without_the_node_has_a_plain_checkout() -> None:
    assert checkouts("job a { step run=x }") == [CheckoutSpec()]


def test_a_checkout_of_defaults_holds_for_each_property_that_a_job_does_not_give() -> None:
    text = """
        job a { step run=x }
        defaults { checkout depth=7 lfs=#true submodules=#true }
        job b { checkout lfs=#false tags=#true submodules=#false; step run=x }
        job c { checkout none; step run=x }
    """
    plain = CheckoutSpec(depth=7, lfs=True, submodules=Submodules.DIRECT)
    assert checkouts(text) == [plain, CheckoutSpec(depth=7, tags=True), None]


def test_a_job_with_a_checkout_of_its_own_has_one_where_defaults_say_none() -> None:
    text = """
        defaults { checkout none }
        job a { step run=x }
        job b { checkout depth=0; step run=x }
    """
    assert checkouts(text) == [None, CheckoutSpec(depth=0)]


@pytest.mark.parametrize(
    ("written", "column", "sentence"),
    [
        ("depth=-1", 16, "depth is a whole number from 0 to 1000000"),
        ('depth="1"', 16, "depth is a whole number from 0 to 1000000"),
        ("depth=#true", 16, "depth is a whole number from 0 to 1000000"),
        ('tags="yes"', 15, "tags is #true or #false"),
        ("submodules=all", 21, 'submodules is #true, #false or "recursive"'),
        ("lfs=1", 14, "lfs is #true or #false"),
        ("ref=main", 14, 'ref is "head" or "merge", not \'main\''),
        (
            "dept=1",
            10,
            "no property 'dept' (did you mean 'depth'?); known: 'depth', 'tags', 'submodules', 'lfs', 'ref'",
        ),
        ("main", 10, "what checkout takes besides properties is \"none\", not 'main'"),
        ("none depth=1", 21, "'checkout none' leaves the workspace empty, and takes nothing else"),
        ("none none", 15, "'checkout none' leaves the workspace empty, and takes nothing else"),
        ("{ a }", 12, "'checkout' takes no block"),
    ],
)
def test_a_wrong_property_is_named_with_what_is_allowed(written: str, column: int, sentence: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        read(f"checkout {written}")
    assert (caught.value.line, caught.value.column) == (1, column)
    assert sentence in caught.value.problem
