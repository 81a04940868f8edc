"""The mutants of `./just mutate`, and the tests that it chooses."""

from textwrap import dedent

import pytest
from typer.testing import CliRunner

from tests.mutation.__main__ import app, judged
from tests.mutation.changes import mutants
from tests.mutation.choosing import decisions, files_of_tests, named, path_of

SOURCE = dedent('''
    """A sentence."""

    from enum import StrEnum
    from typing import Final, TypeVar

    T = TypeVar("T")
    ENDS: Final = {1} | {2}
    Alias = int | str


    class Held:
        @property
        def is_held(self) -> bool:
            return self.started is not None


    def admit(used: int, limit: int | None) -> str:
        """A sentence."""
        if limit:
            return "no room here"
        return "yes" if used < 3 else "no"
''')


def changes(source: str) -> set[tuple[str, str]]:
    return {(each.was, each.becomes) for each in mutants("solstice_orchestrator.domain.needs", source)}


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("ENDS: Final = {1} | {2}", "ENDS: Final = {1} & {2}"),
        ("return self.started is not None", "return self.started is None"),
        ("if limit:", "if (not limit):"),
        ('return "yes" if used < 3 else "no"', 'return "yes" if used <= 3 else "no"'),
        ('return "yes" if used < 3 else "no"', 'return "yes" if used < 4 else "no"'),
        ('return "yes" if used < 3 else "no"', 'return "XXyesXX" if used < 3 else "no"'),
        ('return "yes" if used < 3 else "no"', 'return "yes" if (used < 3) and False else "no"'),
    ],
)
def test_a_mutant_has_one_change(was: str, becomes: str) -> None:
    assert (was, becomes) in changes(SOURCE)


@pytest.mark.parametrize(
    "text", ["A sentence", "no room here", "Alias", "TypeVar", "import", "@property", "int | None", "{1,"]
)
def test_no_mutant_changes_what_no_test_is_about(text: str) -> None:
    assert not [was for was, _ in changes(SOURCE) if text in was]


def test_a_change_is_put_into_the_function_that_holds_it() -> None:
    found = {each.was: each.function for each in mutants("solstice_orchestrator.domain.needs", SOURCE)}
    assert found["ENDS: Final = {1} | {2}"] is None
    assert found["return self.started is not None"] == "Held.is_held"
    assert found["if limit:"] == "admit"


def test_the_same_lot_draws_the_same_mutants_and_every_kind_of_change() -> None:
    drawn = mutants("solstice_orchestrator.domain.needs", SOURCE, each=6, seed=3)
    assert drawn == mutants("solstice_orchestrator.domain.needs", SOURCE, each=6, seed=3)
    assert len(drawn) == 6
    assert len({each.first_line for each in drawn}) > 2


def test_a_module_is_named_in_full_by_its_end_or_by_its_file() -> None:
    for word in (
        "solstice_orchestrator.domain.needs",
        "needs",
        "services/orchestrator/solstice_orchestrator/domain/needs.py",
    ):
        assert named([word]) == ["solstice_orchestrator.domain.needs"]
    with pytest.raises(LookupError, match="No module is called 'nonsense'"):
        named(["nonsense"])


def test_decisions_are_those_of_the_contract() -> None:
    assert {"solstice_orchestrator.domain.needs", "solstice_forge.forges.gitlab"} <= set(decisions())
    assert "solstice_orchestrator.stages.dispatch" not in decisions()


def test_a_module_is_tried_by_tests_of_its_name_and_by_the_contract_suites_that_reach_it() -> None:
    files = files_of_tests(["solstice_orchestrator.domain.needs"])
    assert "tests/unit/orchestrator/domain/test_needs.py" in files
    assert "tests/contract/test_job_finish.py" in files
    assert "tests/contract/test_broker.py" not in files


def test_of_two_modules_of_one_name_each_is_tried_by_the_test_in_its_room() -> None:
    files = files_of_tests(["solstice_orchestrator.simulation.bounds"])
    assert "tests/unit/orchestrator/simulation/test_bounds.py" in files
    assert "tests/unit/common/http/server/test_bounds.py" not in files


def test_a_module_that_no_unit_test_imports_is_tried_by_those_of_its_package_that_reach_it() -> None:
    assert "tests/unit/orchestrator/workflow/test_reader.py" in files_of_tests(
        ["solstice_orchestrator.workflow.env_node"]
    )


def test_the_tests_to_ask_can_be_named() -> None:
    arguments = ["needs", "--unit", "--tests", "tests/contract/test_schemas.py"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "No unit or contract test imports these modules" in result.output


def test_each_judged_change_is_of_lines_that_its_module_still_has() -> None:
    outdated = [
        (module, was)
        for module, was, _ in judged()
        if not (path := path_of(module))
        or not set(was.splitlines()) <= {line.strip() for line in path.read_text().splitlines()}
    ]
    assert outdated == []
