"""The schema for editors and the reader know the same names."""

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.commands.workflow_schema import RULES, TOP, tree_of, workflow_schema
from solstice_orchestrator.workflow.kdl import read
from solstice_orchestrator.workflow.reader import parse_workflow

ROOT = Path(__file__).parents[4]
VALIDATOR = Draft202012Validator(workflow_schema())
PAGE = (ROOT / "docs" / "workflow.md").read_text(encoding="utf-8")
EXAMPLES = [
    *re.findall(r"```kdl\n(.*?)```", PAGE, re.DOTALL),
    *(file.read_text(encoding="utf-8") for file in ROOT.glob("docs/examples/*/.solstice/workflow.kdl")),
    (ROOT / ".solstice" / "workflow.kdl").read_text(encoding="utf-8"),
]
BLOCKS = {
    "job": "job a {{ step run=x; {} }}",
    "step": "job a {{ step run=x {{ {} }} }}",
    "defaults": "defaults {{ {} }}; job a {{ step run=x }}",
    "on": "on {{ push; {} }}; job a {{ step run=x }}",
    "push": "on {{ push {{ {} }} }}; job a {{ step run=x }}",
    "input": "input b {{ {} }}; job a {{ step run=x }}",
    "service": "job a {{ step run=x; service b image=c {{ {} }} }}",
}
HEADS = {
    "job": "job b {} {{ step run=x }}",
    "step": "job b {{ step run=x {} }}",
    "defaults": "defaults {}",
    "push": "on {{ push {} }}",
    "change-request": "on {{ change-request {} }}",
    "input": "input b {}",
    "checkout": "job b {{ checkout {}; step run=x }}",
    "image": "job b {{ image c {}; step run=x }}",
    "service": "job b {{ service c image=d {}; step run=x }}",
    "artifact": "job b {{ artifact c path=d {}; step run=x }}",
    "artifacts": "job b {{ artifacts c {}; step run=x }}",
    "output": "job b {{ output c {}; step run=x }}",
    "cache": "job b {{ cache c path=d key=e {}; step run=x }}",
    "report": "job b {{ report junit d {}; step run=x }}",
    "concurrency": "concurrency c {}",
    "parameter": "template t {{ parameter p {} }}",
}
WRONG = (
    "job a { stop run=x }",
    "job a runs_on=x { step run=x }",
    "job a { step }",
    "job a b { step run=x }",
    "job { step run=x }",
    "job a { step run=1 }",
    "job a { step run=x continue=yes }",
    "job a retries=-1 { step run=x }",
    "job a { step run=x }; supersede yes",
    "job a { step run=x; needs }",
    "job a { step run=x; artifact b }",
    "job a network=host { step run=x }",
    "jobs a",
    'timeout "2h"',
    "on { pushed }; job a { step run=x }",
    "input a type=number; job b { step run=x }",
)


def known_by(text: str) -> set[str]:
    """What the reader says that it knows, in the place of `zz`."""
    with pytest.raises(InvalidWorkflow) as refused:
        parse_workflow(text.encode(), default_runs_on="linux")
    return set(re.findall(r"'([a-z-]+)'", str(refused.value).partition("known: ")[2]))


def test_the_checked_in_schema_is_the_rendered_one() -> None:
    checked_in = json.loads((ROOT / "schemas" / "workflow" / "workflow.json").read_text(encoding="utf-8"))
    assert checked_in == json.loads(json.dumps(workflow_schema())), (
        "solstice workflow schema > schemas/workflow/workflow.json"
    )
    Draft202012Validator.check_schema(checked_in)


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_valid(text: str) -> None:
    assert [error.message[:200] for error in VALIDATOR.iter_errors(tree_of(read(text)))] == []


@pytest.mark.parametrize("text", WRONG)
def test_mistakes_that_a_schema_can_see_are_refused_by_both(text: str) -> None:
    with pytest.raises(InvalidWorkflow):
        parse_workflow(text.encode(), default_runs_on="linux")
    assert not VALIDATOR.is_valid(tree_of(read(text)))


def test_the_schema_has_the_names_of_the_reader() -> None:
    assert known_by("zz") == set(TOP)
    for kind, text in BLOCKS.items():
        assert known_by(text.format("zz")) == set(RULES[kind].children or ()) - {"with"}, kind
    for kind, text in HEADS.items():
        found = known_by(f"{text.format('zz=1')}; job a {{ step run=x }}")
        assert found == set(RULES[kind].properties or ()), kind
