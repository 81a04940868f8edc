"""Workflow files become jobs, or a sentence with line and column."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.jobs import JobSpec
from solstice_orchestrator.workflow import MAX_FILE_BYTES, parse_workflow

EVERYTHING = """
// A comment.
defaults runs-on="linux" timeout="10m" {
    env { COLOUR "always"; LEVEL "1" }
}

job "lint" {
    step "ruff" run="ruff check"
}

job "test" runs-on="illumos" timeout="1h30m" {
    needs "lint"
    needs build
    env { LEVEL "2" }
    step "unit tests" run="pytest -q" timeout="90s" { env { SEED "7" } }
    step run=#\"\"\"
        echo "two"
          lines
        \"\"\"#
}

job build { step run="make" }
"""


def parse(text: str | bytes, only: str | None = None) -> dict[str, JobSpec]:
    content = text.encode() if isinstance(text, str) else text
    return {job.name: job for job in parse_workflow(content, default_runs_on="here", only=only)}


def problem(text: str | bytes, only: str | None = None) -> InvalidWorkflow:
    with pytest.raises(InvalidWorkflow) as caught:
        parse(text, only)
    return caught.value


def test_jobs_come_in_the_order_of_the_file_with_all_they_say() -> None:
    jobs = parse(EVERYTHING)
    assert list(jobs) == ["lint", "test", "build"]
    test = jobs["test"]
    assert test.runs_on == "illumos"
    assert test.timeout_seconds == 5400
    assert test.needs == ("lint", "build")
    assert [(step.name, step.run, step.timeout_seconds) for step in test.steps] == [
        ("unit tests", "pytest -q", 90.0),
        ("step 2", 'echo "two"\n  lines', None),
    ]
    assert dict(test.steps[0].env) == {"SEED": "7"}


def test_defaults_hold_for_jobs_that_say_nothing_and_a_jobs_own_word_wins() -> None:
    jobs = parse(EVERYTHING)
    assert (jobs["lint"].runs_on, jobs["lint"].timeout_seconds) == ("linux", 600)
    assert dict(jobs["lint"].env) == {"COLOUR": "always", "LEVEL": "1"}
    assert dict(jobs["test"].env) == {"COLOUR": "always", "LEVEL": "2"}


def test_defaults_hold_also_for_jobs_above_them() -> None:
    assert parse('job a { step run=x }\ndefaults runs-on="late"')["a"].runs_on == "late"


def test_without_any_label_the_given_one_is_used() -> None:
    assert parse("job a { step run=x }")["a"].runs_on == "here"


def test_a_job_has_an_hour_unless_told_otherwise() -> None:
    assert parse("job a { step run=x }")["a"].timeout_seconds == 3600


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90s", 90), ("0.5s", 0.5), ("30m", 1800), ("24h", 86400), ("1h30m", 5400), ("1h1m1.5s", 3661.5)],
)
def test_durations(written: str, seconds: float) -> None:
    assert parse(f'job a timeout="{written}" {{ step run=x }}')["a"].timeout_seconds == seconds


def test_one_job_is_picked_with_all_that_it_needs() -> None:
    text = """
        job a { step run=x }
        job b { needs a; step run=x }
        job c { step run=x }
        job d { needs b; step run=x }
    """
    assert list(parse(text, "d")) == ["a", "b", "d"]
    assert list(parse(text, "c")) == ["c"]


def test_a_job_that_is_not_there_cannot_be_picked() -> None:
    error = problem("job test { step run=x }", "tset")
    assert "asks for the job 'tset'" in error.problem
    assert "did you mean 'test'?" in error.problem


def test_256_jobs_in_a_row_are_fine_and_one_more_is_not() -> None:
    def row(length: int) -> str:
        return "\n".join(
            f"job j{n} {{ {f'needs j{n + 1}' if n + 1 < length else ''}; step run=x }}" for n in range(length)
        )

    assert len(parse(row(256))) == 256
    assert problem(row(257)).problem == "a workflow may have 256 jobs, no more"


STEP = "step run=x"
WRONG: dict[str, tuple[str | bytes, int, int, str]] = {
    "empty file": ("", 1, 1, "a workflow needs at least one job"),
    "only defaults": ("defaults", 1, 1, "a workflow needs at least one job"),
    "not UTF-8": (b"job a\njob \xff", 2, 5, "the byte 0xff here is not UTF-8"),
    "too long": (b"// " + b"x" * MAX_FILE_BYTES, 1, 1, "may be 256 KiB long"),
    "broken KDL": ("job a {\n  step run=x", 1, 7, "'{' is never closed"),
    "unknown node": ("jobs a", 1, 1, "'jobs' is not known at the top of a workflow (did you mean 'job'?)"),
    "a wrapper": (f'workflow "w" {{ job a {{ {STEP} }} }}', 1, 1, "known: 'job', 'defaults'"),
    "unknown node in a job": (
        f"job a {{\n  {STEP}\n  setps run=y\n}}",
        3,
        3,
        "(did you mean 'step'?)",
    ),
    "unknown node in a step": (
        "job a {\n step run=x {\n  need b\n }\n}",
        3,
        3,
        "'need' is not known in a step",
    ),
    "unknown property of a job": (f"job a runs_on=b {{ {STEP} }}", 1, 7, "(did you mean 'runs-on'?)"),
    "unknown property of a step": ("job a { step rum=x }", 1, 14, "(did you mean 'run'?)"),
    "priority is not the workflow's": (
        f"job a priority=high {{ {STEP} }}",
        1,
        7,
        "'job' has no property 'priority'; known: 'runs-on', 'timeout'",
    ),
    "property twice": ("job a { step run=x run=y }", 1, 20, "'run' is given twice"),
    "job without a name": (f"job {{ {STEP} }}", 1, 1, "a job has one name"),
    "job with two names": (f"job a b {{ {STEP} }}", 1, 7, "a job has one name"),
    "job with a number for a name": (f"job 7 {{ {STEP} }}", 1, 5, 'must be text; write it in quotes: "7"'),
    "job with a bad name": (f'job "a b" {{ {STEP} }}', 1, 5, "'a b' cannot be the name of a job"),
    "job with a long name": (f"job {'a' * 101} {{ {STEP} }}", 1, 5, "at most 100 letters"),
    "job twice": (f"job a {{ {STEP} }}\njob a {{ {STEP} }}", 2, 5, "there is a job 'a' already"),
    "job without steps": ("job a {\n}", 1, 1, "the job 'a' has no steps"),
    "too many steps": ("job a {\n" + "step run=x\n" * 101 + "}", 102, 1, "100 steps"),
    "step without run": ('job a {\n  step "s"\n}', 2, 3, 'a step needs run="..."'),
    "step with run as an argument": ('job a { step "s" "make" }', 1, 18, "a step has one name"),
    "step with an empty run": ('job a { step run="  " }', 1, 18, "run is empty"),
    "run is a number": ("job a { step run=1 }", 1, 18, 'run must be text; write it in quotes: "1"'),
    "run is a keyword": ("job a { step run=#true }", 1, 18, 'write it in quotes: "true"'),
    "run with U+0000": (r'job a { step run="a\u{0}" }', 1, 18, "U+0000"),
    "step name of two lines": (r'job a { step "s\nt" run=x }', 1, 14, "all on one line"),
    "step name too long": (f"job a {{ step {'s' * 101} run=x }}", 1, 14, "between 1 and 100 characters"),
    "typed job": (f"(t)job a {{ {STEP} }}", 1, 4, "the type (t) means nothing here"),
    "typed value": ("job a { step run=(sh)x }", 1, 18, "the type (sh) means nothing here"),
    "bad label": (f'job a runs-on="-x" {{ {STEP} }}', 1, 15, "cannot be a label"),
    "label too long": (f"job a runs-on={'x' * 64} {{ {STEP} }}", 1, 15, "at most 63"),
    "timeout without unit": (
        f"job a timeout=30 {{ {STEP} }}",
        1,
        15,
        'needs a unit, in quotes: "30s" or "30m"',
    ),
    "timeout of words": (f'job a timeout="soon" {{ {STEP} }}', 1, 15, "'soon' is no duration"),
    "empty timeout": (f'job a timeout="" {{ {STEP} }}', 1, 15, "is no duration"),
    "timeout of nothing": (f'job a timeout="0s" {{ {STEP} }}', 1, 15, "longer than 0s and at most 24h"),
    "timeout of days": (f'job a timeout="25h" {{ {STEP} }}', 1, 15, "at most 24h"),
    "timeout of a step": ('job a { step run=x timeout="1d" }', 1, 28, "'1d' is no duration"),
    "unknown need": (
        f"job build {{ {STEP} }}\njob a {{ needs biuld; {STEP} }}",
        2,
        15,
        "(did you mean 'build'?)",
    ),
    "need twice": (
        f"job b {{ {STEP} }}\njob a {{ needs b\n needs b; {STEP} }}",
        3,
        8,
        "'b' is needed already",
    ),
    "needs nothing": (f"job a {{ needs; {STEP} }}", 1, 9, "needs takes the names of jobs"),
    "needs with a block": (f"job a {{ needs a {{ x }}; {STEP} }}", 1, 19, "'needs' takes no block"),
    "needs itself": (f"job a {{ needs a; {STEP} }}", 1, 15, "wait for each other: a needs a"),
    "circle": (
        f"job a {{ needs b; {STEP} }}\njob b {{ needs c; {STEP} }}\njob c {{ needs a; {STEP} }}",
        3,
        15,
        "a needs b needs c needs a",
    ),
    "circle away from the first job": (
        f"job z {{ needs a; {STEP} }}\njob a {{ needs b; {STEP} }}\njob b {{ needs a; {STEP} }}",
        3,
        15,
        "a needs b needs a",
    ),
    "defaults twice": (f"defaults\ndefaults\njob a {{ {STEP} }}", 2, 1, "a second time"),
    "defaults with a name": ("defaults a", 1, 10, "takes no arguments"),
    "defaults with a step": (f"defaults {{ {STEP} }}", 1, 12, "'step' is not known in 'defaults'"),
    "env as properties": (f"job a {{ env A=b; {STEP} }}", 1, 13, "'env' has no property 'A'; known: none"),
    "env with an argument": (f"job a {{ env A; {STEP} }}", 1, 13, "env takes a block"),
    "env twice": (f"job a {{ env {{ A x }}\n env {{ B x }}\n {STEP} }}", 2, 2, "put all into one block"),
    "variable without a value": (
        f"job a {{ env {{ A }}; {STEP} }}",
        1,
        15,
        'a variable has one value: A "value"',
    ),
    "variable with two values": (f"job a {{ env {{ A b c }}; {STEP} }}", 1, 19, "one value"),
    "variable with a number": (f"job a {{ env {{ A 1.10 }}; {STEP} }}", 1, 17, "must be text"),
    "variable with a dash": (f"job a {{ env {{ A-B c }}; {STEP} }}", 1, 15, "'A-B' cannot name a variable"),
    "variable twice": (f"job a {{ env {{ A b; A c }}; {STEP} }}", 1, 20, "'A' is set already"),
    "variable of ours": (f"job a {{ env {{ SOLSTICE_X b }}; {STEP} }}", 1, 15, "set by Solstice CI"),
    "variable too long": (f"job a {{ env {{ A {'b' * 32769} }}; {STEP} }}", 1, 17, "32 KiB long"),
}


@pytest.mark.parametrize(("text", "line", "column", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_workflow_is_told_where_and_what(
    text: str | bytes, line: int, column: int, sentence: str
) -> None:
    error = problem(text)
    assert (error.line, error.column) == (line, column)
    assert sentence in error.problem


def test_the_error_reads_as_a_sentence() -> None:
    assert str(problem("jobs a")).startswith("line 1, column 1: 'jobs' is not known")


words = st.sampled_from(
    [
        "job",
        "step",
        "needs",
        "env",
        "defaults",
        "run=",
        "runs-on=",
        "timeout=",
        '"30m"',
        '"a"',
        "a",
        "b",
        "A",
        "lint",
        "{",
        "}",
        "{\n",
        "}\n",
        "\n",
        ";",
        "#true",
        "1",
        "(t)",
        "/-",
        '"x',
        'y"',
    ]
)


@settings(max_examples=500)
@given(st.lists(words, max_size=25).map(" ".join) | st.binary(max_size=100))
def test_any_file_gives_jobs_or_our_error(text: str | bytes) -> None:
    content = text if isinstance(text, bytes) else text.encode()
    try:
        jobs = parse(content)
    except InvalidWorkflow as error:
        told = error
    else:
        assert all(job.steps for job in jobs.values())
        return
    assert 1 <= told.line <= content.count(b"\n") + content.count(b"\r") + 1
    assert told.column >= 1
