"""Workflow files become jobs, or a sentence with line and column."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.jobs import (
    Concurrency,
    GroupMode,
    JobCondition,
    JobSpec,
    RunSpec,
    named_secrets,
)
from solstice_orchestrator.workflow.reader import MAX_FILE_BYTES, Workflow, parse_workflow

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
    return {job.name: job for job in whole(text, only).jobs}


def whole(text: str | bytes, only: str | None = None) -> Workflow:
    content = text.encode() if isinstance(text, str) else text
    return parse_workflow(content, default_runs_on="here", only=only)


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


def test_a_job_has_an_hour_by_default() -> None:
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


def test_a_file_that_says_nothing_of_its_run_leaves_it_to_the_operator() -> None:
    assert whole("job a { step run=x }").run == RunSpec()


def test_what_a_file_says_of_its_run() -> None:
    workflow = whole(
        'timeout "36h"\nsupersede #false\nconcurrency "deploy" mode="cancel"\njob a { step run=x }'
    )
    assert workflow.run == RunSpec(
        timeout_seconds=36 * 3600,
        concurrency=Concurrency(group="deploy", mode=GroupMode.CANCEL),
        supersede=False,
    )


def test_a_job_says_when_it_runs_how_often_and_with_whom() -> None:
    text = """
        job a { step run=x }
        job b if="always" retries=2 no-output-timeout="5m" {
            needs a
            concurrency "the board"
            step run=x
        }
    """
    plain, reported = parse(text).values()
    assert (plain.condition, plain.retries, plain.no_output_seconds, plain.concurrency) == (
        *(JobCondition.SUCCESS, 0, None, None),
    )
    assert (reported.condition, reported.retries, reported.no_output_seconds, reported.concurrency) == (
        *(JobCondition.ALWAYS, 2, 300, Concurrency(group="the board")),
    )


def test_limits_in_defaults_hold_until_a_job_says_otherwise() -> None:
    text = """
        defaults retries=1 no-output-timeout="1m"
        job a { step run=x }
        job b retries=0 no-output-timeout="2m" { step run=x }
    """
    assert [(job.retries, job.no_output_seconds) for job in parse(text).values()] == [(1, 60), (0, 120)]


# -- matrix --------------------------------------------------------------------------------------------------------

MATRIX = """
job build { matrix { os linux illumos }; step run=make }
job test runs-on="{matrix.os}" {
    needs build
    matrix { os linux illumos; python "3.11" "3.12" }
    concurrency "db {matrix.python}"
    env { VERSION "py{matrix.python}" }
    step "on {matrix.os}" run="tox -e {matrix.python} {matrix.os} $OTHER {other}" { env { OS "{matrix.os}" } }
}
job report { needs test; step run=x }
"""


def test_a_matrix_is_one_job_for_every_combination() -> None:
    jobs = parse(MATRIX)
    assert list(jobs) == [
        *("build-linux", "build-illumos"),
        *("test-linux-3.11", "test-linux-3.12", "test-illumos-3.11", "test-illumos-3.12"),
        "report",
    ]
    test = jobs["test-illumos-3.12"]
    assert dict(test.matrix) == {"os": "illumos", "python": "3.12"}
    assert test.runs_on == "illumos"
    assert dict(test.env) == {"MATRIX_OS": "illumos", "MATRIX_PYTHON": "3.12", "VERSION": "py3.12"}
    assert test.concurrency == Concurrency(group="db 3.12")
    (step,) = test.steps
    assert (step.name, step.run) == ("on illumos", "tox -e 3.12 illumos $OTHER {other}")
    assert dict(step.env) == {"OS": "illumos"}


def test_to_need_a_matrix_is_to_need_all_its_jobs() -> None:
    jobs = parse(MATRIX)
    assert jobs["test-linux-3.11"].needs == ("build-linux", "build-illumos")
    assert len(jobs["report"].needs) == 4


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("build", ["build-linux", "build-illumos"]),
        ("build-illumos", ["build-illumos"]),
        ("test-linux-3.12", ["build-linux", "build-illumos", "test-linux-3.12"]),
    ],
)
def test_a_whole_matrix_or_one_job_of_it_is_picked(only: str, names: list[str]) -> None:
    assert list(parse(MATRIX, only)) == names


def test_names_of_a_matrix_are_valid_in_urls_for_any_values() -> None:
    jobs = parse('job t { matrix { db "postgres 15" "é/ü" }; step run="{matrix.db}" }')
    assert [(job.name, job.steps[0].run) for job in jobs.values()] == [
        ("t-postgres-15", "postgres 15"),
        ("t--", "é/ü"),
    ]


def test_256_combinations_are_fine() -> None:
    values = " ".join(f"v{n}" for n in range(16))
    assert len(parse(f"job a {{ matrix {{ a {values}; b {values} }}; step run=x }}")) == 256


def test_the_variable_of_an_axis_wins_over_defaults_and_the_jobs_own_over_it() -> None:
    text = """
        defaults { env { MATRIX_A one; MATRIX_B one } }
        job t { matrix { a two; b two }; env { MATRIX_B three }; step run=x }
    """
    assert dict(parse(text)["t-two-two"].env) == {"MATRIX_A": "two", "MATRIX_B": "three"}


def test_what_a_value_holds_is_not_filled_again() -> None:
    (spec,) = parse('job t { matrix { a "{matrix.a}" }; step run="echo {matrix.a}" }').values()
    assert spec.steps[0].run == "echo {matrix.a}"


STEP = "step run=x"
MANY_VALUES = " ".join(f"v{n}" for n in range(100))


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
    "a matrix value is a number that ends with a zero": (
        f"job a {{ matrix {{ v 1.10 }}; {STEP} }}",
        1,
        20,
        'a value of a matrix must be text; write it in quotes: "1.10"',
    ),
    "a variable is a hexadecimal number": (
        f"job a {{ env {{ V 0x1F }}; {STEP} }}",
        1,
        17,
        'write it in quotes: "0x1F"',
    ),
    "timeout is a fraction without unit": (
        f"job a timeout=1.5 {{ {STEP} }}",
        1,
        15,
        'needs a unit, in quotes: "90s", "30m" or "1h30m"',
    ),
    "run is a keyword": ("job a { step run=#true }", 1, 18, 'write it in quotes: "true"'),
    "run with U+0000": (r'job a { step run="a\u{0}" }', 1, 18, "U+0000"),
    "step name of two lines": (r'job a { step "s\nt" run=x }', 1, 14, "all on one line"),
    "step name of white space": ('job a { step "  " run=x }', 1, 14, "between 1 and 100 characters"),
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
    "timeout of one without unit": (f"job a timeout=1 {{ {STEP} }}", 1, 15, 'in quotes: "1s" or "1m"'),
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
    "secret of no name": (f"job a {{ secret; {STEP} }}", 1, 9, "secret takes the names of secrets"),
    "secret that cannot be a variable": (f'job a {{ secret "A-B"; {STEP} }}', 1, 16, "cannot name a secret"),
    "secret of ours": (f"job a {{ secret SOLSTICE_X; {STEP} }}", 1, 16, "cannot name a secret"),
    "secret twice": (f"job a {{ secret A\n secret A; {STEP} }}", 2, 9, "is named already"),
    "too many secrets": (
        f"job a {{ secret {' '.join(f'A{n:02}' for n in range(51))}; {STEP} }}",
        1,
        216,
        "50 secrets may be named",
    ),
    "secret in defaults": (f"defaults {{ secret A }}\njob a {{ {STEP} }}", 1, 12, "'secret' is not known"),
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
    "checkout twice": (f"job a {{ checkout; checkout; {STEP} }}", 1, 19, "a second time"),
    "checkout in a step": ("job a { step run=x { checkout } }", 1, 22, "'checkout' is not known in a step"),
    "defaults twice": (f"defaults\ndefaults\njob a {{ {STEP} }}", 2, 1, "a second time"),
    "defaults with a name": ("defaults a", 1, 10, "takes no arguments"),
    "defaults with a step": (f"defaults {{ {STEP} }}", 1, 12, "'step' is not known in 'defaults'"),
    "env as properties": (f"job a {{ env A=b; {STEP} }}", 1, 13, "'env' has no property 'A'; known: none"),
    "env with an argument": (f"job a {{ env A; {STEP} }}", 1, 13, "env takes a block"),
    "if of something else": (
        f'job a if="allways" {{ {STEP} }}',
        1,
        10,
        """if is "success", "always" or an expression such as "event == 'push'", not 'allways' (did you mean 'always'?)""",
    ),
    "if that does not end": (
        f"""job a if="event == 'push'  &&" {{ {STEP} }}""",
        1,
        10,
        "if: a value is missing",
    ),
    "if of an axis that is not there": (
        f"""job a if="event == '{{matrix.os}}'" {{ {STEP} }}""",
        1,
        10,
        "there is no matrix here",
    ),
    "on without a block": (f"on; job a {{ {STEP} }}", 1, 1, "on names at least one event"),
    "on with an argument": (f"on push; job a {{ {STEP} }}", 1, 4, "on takes a block"),
    "on of something else": (
        f"on {{ pull_request }}; job a {{ {STEP} }}",
        1,
        6,
        "'pull_request' is not known in 'on'",
    ),
    "on twice": (f"on {{ push }}; on {{ tag }}; job a {{ {STEP} }}", 1, 14, "stands here a second time"),
    "an event of on twice": (
        f"on {{ push a; push b }}; job a {{ {STEP} }}",
        1,
        14,
        "stands here a second time",
    ),
    "on with a pattern that is none": (f'on {{ push "[" }}; job a {{ {STEP} }}', 1, 11, "[ without its ]"),
    "on with a pattern where there is no name": (
        f"on {{ schedule nightly }}; job a {{ {STEP} }}",
        1,
        15,
        "'schedule' takes no patterns",
    ),
    "if of a truth": (f"job a if=#true {{ {STEP} }}", 1, 10, "if must be text"),
    "too many retries": (f"job a retries=6 {{ {STEP} }}", 1, 15, "retries is a whole number from 0 to 5"),
    "retries below nothing": (f"job a retries=-1 {{ {STEP} }}", 1, 15, "a whole number from 0 to 5"),
    "retries in quotes": (f'job a retries="2" {{ {STEP} }}', 1, 15, "without quotes: retries=5"),
    "retries of a truth": (f"job a retries=#true {{ {STEP} }}", 1, 15, "a whole number"),
    "silence without unit": (f"job a no-output-timeout=5 {{ {STEP} }}", 1, 25, "needs a unit"),
    "run timeout without unit": (f"timeout 5\njob a {{ {STEP} }}", 1, 9, 'in quotes: "5s"'),
    "run timeout of weeks": (f'timeout "169h"\njob a {{ {STEP} }}', 1, 9, "at most 168h"),
    "run timeout of nothing": (
        f"timeout\njob a {{ {STEP} }}",
        1,
        1,
        'timeout takes one duration: timeout "2h"',
    ),
    "run timeout twice": (f'timeout "1s"\ntimeout "1s"\njob a {{ {STEP} }}', 2, 1, "once is enough"),
    "supersede of nothing": (f"supersede\njob a {{ {STEP} }}", 1, 1, "supersede takes #true or #false"),
    "supersede in words": (f"supersede yes\njob a {{ {STEP} }}", 1, 11, "#true or #false"),
    "group without a name": (f"concurrency\njob a {{ {STEP} }}", 1, 1, 'one group: concurrency "deploy"'),
    "group with a long name": (f"concurrency {'g' * 101}\njob a {{ {STEP} }}", 1, 13, "between 1 and 100"),
    "group of another mode": (
        f'concurrency g mode="quue"\njob a {{ {STEP} }}',
        1,
        20,
        "mode is \"queue\" or \"cancel\", not 'quue' (did you mean 'queue'?)",
    ),
    "group twice": (f"job a {{ concurrency g\n concurrency h; {STEP} }}", 2, 2, "once is enough"),
    "matrix with an argument": (f"job a {{ matrix os; {STEP} }}", 1, 16, "matrix takes a block"),
    "matrix without axes": (f"job a {{ matrix; {STEP} }}", 1, 9, "a matrix needs at least one axis"),
    "axis without values": (f"job a {{ matrix {{ os }}; {STEP} }}", 1, 18, 'needs values: os "one" "two"'),
    "axis with a number": (f"job a {{ matrix {{ py 3.12 }}; {STEP} }}", 1, 21, 'in quotes: "3.12"'),
    "axis with an odd name": (f'job a {{ matrix {{ "a b" c }}; {STEP} }}', 1, 18, "cannot name an axis"),
    "axis twice": (f"job a {{ matrix {{ os a; OS b }}; {STEP} }}", 1, 24, "both are MATRIX_OS"),
    "value twice": (f"job a {{ matrix {{ os a b a }}; {STEP} }}", 1, 25, "'a' is a value of 'os' already"),
    "value of two lines": (f'job a {{ matrix {{ os "a\\nb" }}; {STEP} }}', 1, 21, "all on one line"),
    "too many axes": (
        f"job a {{ matrix {{ {'; '.join(f'a{n} v' for n in range(9))} }}; {STEP} }}",
        1,
        18 + 8 * 6,
        "8 axes, no more",
    ),
    "too many combinations": (
        f"job a {{ matrix {{ a {MANY_VALUES}\n b {MANY_VALUES} }}; {STEP} }}",
        2,
        2,
        "256 combinations, this one has more",
    ),
    "too many jobs by matrices": (
        "\n".join(f"job {name} {{ matrix {{ a {MANY_VALUES} }}; {STEP} }}" for name in "abc"),
        3,
        1,
        "256 jobs, no more",
    ),
    "names of a matrix alike": (
        f'job a {{ matrix {{ v "1/2" "1+2" }}; {STEP} }}',
        1,
        5,
        "would have one name",
    ),
    "name of a matrix taken": (
        f"job a-b {{ {STEP} }}\njob a {{ matrix {{ v b }}; {STEP} }}",
        2,
        5,
        "there is a job 'a-b' already",
    ),
    "name of a matrix too long": (
        f"job a {{ matrix {{ v {'v' * 99} }}; {STEP} }}",
        1,
        5,
        "at most 100 characters together",
    ),
    "place without its axis": (
        'job a { matrix { os linux; python cp }; step run="{matrix.pyhton}" }',
        1,
        50,
        "{matrix.pyhton}: this matrix has no axis 'pyhton' (did you mean 'python'?); known: os, python",
    ),
    "place without a matrix": ('job a { step run="{matrix.os}" }', 1, 18, "there is no matrix here"),
    "place in defaults": (
        f'defaults {{ env {{ A "{{matrix.os}}" }} }}\njob a {{ {STEP} }}',
        1,
        20,
        "no matrix here",
    ),
    "label of a matrix that is none": (
        f'job a runs-on="{{matrix.os}}" {{ matrix {{ os "a b" }}; {STEP} }}',
        1,
        15,
        "'a b' cannot be a label",
    ),
    "one job of a matrix needed": (
        f"job a {{ matrix {{ v b }}; {STEP} }}\njob c {{ needs a-b; {STEP} }}",
        2,
        15,
        "there is no job 'a-b' to need",
    ),
    "more text than a run may hold": (
        f"job a {{ matrix {{ v {' '.join(f'v{n}' for n in range(200))} }}\nstep run={'x' * 30_000} }}",
        1,
        5,
        "more than 4 MiB of scripts and variables",
    ),
    "more text in the variables of steps than a run may hold": (
        f"job a {{ matrix {{ v {MANY_VALUES} }}\nstep run=x {{ env {{ A {'x' * 32_000}; B {'x' * 32_000} }} }}; {STEP} }}",
        1,
        5,
        "more than 4 MiB of scripts and variables",
    ),
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


def test_job_and_step_name_secrets() -> None:
    content = b"job a { secret A B; secret C; step run=x { secret D; env { E f }; }; step run=y; }"
    (spec,) = parse_workflow(content, default_runs_on="linux").jobs
    assert spec.secrets == ("A", "B", "C")
    assert [step.secrets for step in spec.steps] == [("D",), ()]
    assert named_secrets(spec) == {"A", "B", "C", "D"}


@pytest.mark.parametrize(("text", "line", "column", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_workflow_is_reported_with_its_line(
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
        "timeout",
        "retries=",
        "if=",
        "always",
        "matrix",
        "include",
        "exclude",
        "parallel=",
        "concurrency",
        "mode=",
        "supersede",
        "checkout",
        "depth=",
        "none",
        '"{matrix.a}"',
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
        reported = error
    else:
        assert all(job.steps for job in jobs.values())
        assert all(need in jobs for job in jobs.values() for need in job.needs)
        return
    assert 1 <= reported.line <= content.count(b"\n") + content.count(b"\r") + 1
    assert reported.column >= 1
