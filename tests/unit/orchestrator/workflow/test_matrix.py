"""A matrix leaves combinations out and adds others; `parallel` makes several jobs of each."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.jobs import JobSpec
from solstice_orchestrator.workflow.reader import parse_workflow

STEP = "step run=x"
AXES = {"os": ("linux", "illumos", "haiku"), "db": ("pg", "lite"), "py": ("3.11", "3.12")}
KNOWN = st.fixed_dictionaries({}, optional={axis: st.sampled_from(values) for axis, values in AXES.items()})
FRESH = st.fixed_dictionaries({axis: st.sampled_from([*values, "new"]) for axis, values in AXES.items()})


def parse(text: str) -> dict[str, JobSpec]:
    return {job.name: job for job in parse_workflow(text.encode(), default_runs_on="here").jobs}


def matrix(*lines: str) -> list[dict[str, str]]:
    return [
        dict(job.matrix) for job in parse(f"job a {{ matrix {{ {'; '.join(lines)} }}; {STEP} }}").values()
    ]


def rule(name: str, values: dict[str, str]) -> str:
    return " ".join([name, *(f'{axis}="{value}"' for axis, value in values.items())])


ALL = [
    f"{axis} {' '.join(f'{chr(34)}{value}{chr(34)}' for value in values)}" for axis, values in AXES.items()
]


@given(
    st.lists(KNOWN.filter(bool), max_size=4),
    st.lists(FRESH, max_size=4, unique_by=lambda values: tuple(sorted(values.items()))),
)
def test_excluded_combinations_are_missing_and_included_ones_come_last(
    excluded: list[dict[str, str]], included: list[dict[str, str]]
) -> None:
    product = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]
    left = [
        each
        for each in product
        if not any(all(each[axis] == rule[axis] for axis in rule) for rule in excluded)
    ]
    lines = [
        *ALL,
        *(rule("exclude", each) for each in excluded),
        *(rule("include", each) for each in included),
    ]
    if any(each in left for each in included):
        with pytest.raises(InvalidWorkflow, match="in the matrix already"):
            matrix(*lines)
    elif not left and not included:
        with pytest.raises(InvalidWorkflow, match="leave no combination"):
            matrix(*lines)
    else:
        assert matrix(*lines) == [*left, *included]


def test_a_matrix_may_be_a_list_of_combinations_alone() -> None:
    jobs = parse(f'job a {{ matrix {{ include os=linux py="3.11"; include py="3.12" os=haiku }}; {STEP} }}')
    assert list(jobs) == ["a-linux-3.11", "a-haiku-3.12"]
    assert jobs["a-haiku-3.12"].env == {"MATRIX_OS": "haiku", "MATRIX_PY": "3.12"}


def test_parallel_jobs_know_their_number_and_how_many_there_are() -> None:
    jobs = parse(f"job a parallel=3 {{ {STEP} }}\njob b {{ needs a; {STEP} }}")
    assert list(jobs) == ["a-1", "a-2", "a-3", "b"]
    assert jobs["a-2"].env == {"PARALLEL_INDEX": "2", "PARALLEL_TOTAL": "3"}
    assert jobs["a-2"].matrix == {"parallel": "2/3"}
    assert jobs["b"].needs == ("a-1", "a-2", "a-3")


def test_each_combination_of_a_matrix_has_its_parallel_jobs() -> None:
    jobs = parse(f"job a parallel=2 {{ matrix {{ os linux haiku }}; {STEP} }}")
    assert list(jobs) == ["a-linux-1", "a-linux-2", "a-haiku-1", "a-haiku-2"]
    assert jobs["a-haiku-1"].matrix == {"os": "haiku", "parallel": "1/2"}


def test_one_parallel_job_has_a_number_too() -> None:
    assert list(parse(f"job a parallel=1 {{ {STEP} }}")) == ["a-1"]


@pytest.mark.parametrize(
    ("text", "column", "sentence"),
    [
        ("job a { matrix { os x; exclude os=y }", 35, "'y' is no value of 'os', so nothing is left out"),
        ("job a { matrix { os linux; exclude os=linus }", 39, "(did you mean 'linux'?)"),
        (
            "job a { matrix { os x; exclude oz=x }",
            32,
            "has no property 'oz'; known: 'os'",
        ),
        ("job a { matrix { os x; exclude }", 24, 'exclude names what to leave out: exclude os="'),
        ("job a { matrix { os x; exclude x }", 32, "exclude takes values of axes"),
        ("job a { matrix { os x; exclude os=x }", 9, "the exclude rules leave no combination"),
        ("job a { matrix { exclude os=x }", 26, "has no property 'os'; known: none"),
        ("job a { matrix { include }", 18, "include names a value of every axis: include"),
        ("job a { matrix { os x; db y; include os=z }", 30, "every axis; missing: db"),
        ("job a { matrix { os x; include os=x }", 24, "in the matrix already"),
        ("job a { matrix { os x; include os=z db=y }", 37, "has no property 'db'; known: 'os'"),
        ("job a { matrix { include os=z OS=y }", 31, "both are MATRIX_OS"),
        ('job a { matrix { include "a b"=z }', 26, "cannot name an axis"),
        ("job a { matrix { include os=z; include db=z }", 40, "has no property 'db'; known: 'os'"),
        ("job a { matrix { include os=z os=y }", 31, "there is an axis of that name already"),
        ("job a { matrix { include os=1.10 }", 29, 'in quotes: "1.10"'),
        ("job a parallel=0 {", 16, "parallel is at least 1"),
        ("job a parallel=257 {", 16, "whole number from 0 to 256"),
        ('job a parallel="4" {', 16, "whole number from 0 to 256"),
        ("job a parallel=100 { matrix { os x y z }", 16, "3 combinations, each 100 times, are more than 256"),
        ("job a parallel=2 { matrix { parallel x }", 16, "has an axis 'parallel'"),
    ],
)
def test_mistakes_have_a_sentence_and_a_place(text: str, column: int, sentence: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        parse(f"{text}; {STEP} }}" if text.count("{") == 2 else f"{text} {STEP} }}")
    assert sentence in str(caught.value)
    assert (caught.value.line, caught.value.column) == (1, column)


def test_combinations_are_counted_with_the_included_ones() -> None:
    values = " ".join(f"v{number}" for number in range(256))
    with pytest.raises(InvalidWorkflow, match="256 combinations, this one has 257"):
        matrix(f"a {values}", "include a=more")
