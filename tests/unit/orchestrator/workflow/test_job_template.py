"""Jobs that are made of templates."""

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.jobs import JobSpec
from solstice_orchestrator.workflow.reader import parse_workflow

TEMPLATE = """
template python timeout="5m" runs-on="py-{param.version}" {
    parameter version default="3.12"
    parameter what
    env { A "1"; B "{param.what}" }
    matrix { os linux illumos }
    checkout depth=0
    step "test {param.version}" run="tox"
}
"""


def jobs(text: str) -> dict[str, JobSpec]:
    found = parse_workflow((TEMPLATE + text).encode(), default_runs_on="linux").jobs
    return {job.name: job for job in found}


def test_a_job_gets_what_its_template_has() -> None:
    specs = jobs("job a use=python { with what=all }; job b { step run=x }")
    assert list(specs) == ["a-linux", "a-illumos", "b"]
    spec = specs["a-linux"]
    assert (spec.runs_on, spec.timeout_seconds, [step.name for step in spec.steps]) == (
        "py-3.12",
        300,
        ["test 3.12"],
    )
    assert dict(spec.env) == {"A": "1", "B": "all", "MATRIX_OS": "linux"}
    assert spec.checkout is not None
    assert spec.checkout.depth == 0


def test_what_a_job_gives_itself_replaces_or_follows() -> None:
    (spec,) = jobs(
        """job a use=python timeout="1m" {
            with what=x version="3.14"
            env { A "2"; C "3" }
            matrix { os illumos }
            checkout none
            step "more" run=y
        }"""
    ).values()
    assert (spec.name, spec.runs_on, spec.timeout_seconds) == ("a-illumos", "py-3.14", 60)
    assert dict(spec.env) == {"A": "2", "B": "x", "C": "3", "MATRIX_OS": "illumos"}
    assert spec.checkout is None
    assert [step.name for step in spec.steps] == ["test 3.14", "more"]


WRONG = {
    "job a use=pyhton": "there is no template 'pyhton' (did you mean 'python'?); known: python",
    "job a use=python": "the template needs the parameter 'what': with what=",
    "job a use=python { with waht=x }": "(did you mean 'what'?)",
    "job a use=python { with what=x; with what=y }": "'with' stands here a second time",
    "job a { with what=x; step run=y }": "'with' is not known in a job",
    'job a { step run="{param.what}" }': "{param.what}: there is no parameter 'what' here",
    "template python { step run=x }; job a { step run=x }": "there is a template 'python' already",
    "template b use=python { step run=x }; job a { step run=x }": "a template uses no other one",
    "template b { parameter c; parameter c }; job a { step run=x }": "there is a parameter 'c' already",
    "template b { stop run=x }; job a use=b": "line 10, column 14: 'stop' is not known in a job",
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.items(), ids=range(len(WRONG)))
def test_a_mistake_is_named(text: str, sentence: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        jobs(text)
    assert sentence in str(caught.value)
