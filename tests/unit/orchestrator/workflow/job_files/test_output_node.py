"""A job names its outputs, and those that need it get variables that cannot collide."""

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.handing_spec import NeededOutput, OutputSpec
from solstice_orchestrator.store.records.rows import decode_spec, encode_spec
from solstice_orchestrator.workflow.job_files.output_node import MAX_NEEDED, MAX_OUTPUTS, variable_of
from solstice_orchestrator.workflow.reader import parse_workflow


def outputs(lines: str, before: str = "") -> tuple[tuple[OutputSpec, ...], tuple[NeededOutput, ...]]:
    """Those of the first job, and what the second gets, which needs it."""
    content = f"job build {{ step run=x\n{lines}\n}}\njob test {{ needs build; step run=y }}"
    jobs = parse_workflow((before + content).encode(), default_runs_on="linux").jobs
    assert [decode_spec(encode_spec(each)) for each in jobs] == list(jobs)
    return jobs[0].outputs, jobs[-1].needed_outputs


def test_an_output_has_a_text_or_its_steps_write_it() -> None:
    specs, needed = outputs(
        'output version "v{file:VERSION}-{file:a/b}"\noutput "tag.name"\noutput log default=""'
    )
    assert specs == (
        OutputSpec(name="version", text="v{file:VERSION}-{file:a/b}"),
        OutputSpec(name="tag.name"),
        OutputSpec(name="log", default=""),
    )
    assert list(specs[0].files) == ["VERSION", "a/b"]
    assert [(each.job, each.name, each.variable) for each in needed] == [
        ("build", "version", "SOLSTICE_OUTPUT_BUILD_VERSION"),
        ("build", "tag.name", "SOLSTICE_OUTPUT_BUILD_TAG_NAME"),
        ("build", "log", "SOLSTICE_OUTPUT_BUILD_LOG"),
    ]


def test_each_job_of_a_matrix_has_its_own() -> None:
    specs, needed = outputs('matrix { os a "b.c" }\noutput os "{matrix.os}"')
    assert specs == (OutputSpec(name="os", text="a"),)
    assert [each.variable for each in needed] == [
        "SOLSTICE_OUTPUT_BUILD_A_OS",
        "SOLSTICE_OUTPUT_BUILD_B_C_OS",
    ]


def test_variables_are_those_of_every_shell() -> None:
    assert variable_of("build-linux.3", "a-b") == "SOLSTICE_OUTPUT_BUILD_LINUX_3_A_B"


@pytest.mark.parametrize(
    ("lines", "place", "words"),
    [
        ("output", "2:1", "an output has a name"),
        ("output a b c", "2:1", "an output has a name"),
        ("output a { b }", "2:12", "takes no block"),
        ("output a when=b", "2:10", "no property 'when'"),
        ("output 5", "2:8", "must be text"),
        ('output "a b"', "2:8", "cannot be the name of an output"),
        (f"output {'n' * 65}", "2:8", "at most 64"),
        ("output a\noutput A x", "3:8", "would be the same variable as 'a'"),
        ("output a x default=y", "2:20", "needs no default"),
        ('output a "{file:../x}"', "2:10", "'..'"),
        ('output a "{file:/etc/passwd}"', "2:10", "begins in the workspace"),
        ('output a "{file:}"', "2:10", "between 1 and"),
        ('output a "{fil:x}"', "2:10", "of braces"),
        ('output a "{file:x"', "2:10", "of braces"),
        ('output a "{matrix.os}"', "2:10", "no matrix"),
        (f"output a {'x' * 4097}", "2:10", "at most 4096 bytes"),
        ('output a "x\\u{0}"', "2:10", "U+0000"),
        ("\n".join(f"output a{n}" for n in range(MAX_OUTPUTS + 1)), "52:1", "50 outputs"),
        (
            f"matrix {{ n {' '.join(f'v{n}' for n in range(MAX_NEEDED // 10 + 1))} }}\n"
            + "\n".join(f"output o{n} x" for n in range(10)),
            "14:5",
            "more than 1000 outputs together",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(lines: str, place: str, words: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        outputs(lines)
    assert words in str(caught.value)
    assert f"{caught.value.line}:{caught.value.column}" == place


def test_two_outputs_that_would_be_one_variable_are_a_mistake_of_the_job_that_needs_both() -> None:
    both = "job a { step run=x; output b-c x }\njob a-b { step run=x; output c x }\n"
    alone = parse_workflow(f"{both}job test {{ needs a; step run=y }}".encode(), default_runs_on="linux")
    assert len(alone.jobs[-1].needed_outputs) == 1
    with pytest.raises(InvalidWorkflow) as caught:
        parse_workflow(f"{both}job test {{ needs a a-b; step run=y }}".encode(), default_runs_on="linux")
    assert "line 3, column 5" in str(caught.value)
    assert "'c' of 'a-b' and 'b-c' of 'a' would both be the variable SOLSTICE_OUTPUT_A_B_C" in str(
        caught.value
    )
