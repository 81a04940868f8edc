"""The completion scripts of bash, zsh and fish."""

import pytest

from solstice_common.cli.completion.candidates import Completion
from solstice_common.cli.completion.shell_scripts import FILES, SHELLS, answer, script, words_of

WORD_BREAKS = " \t\n\"'@><=;|&(:"


def line(text: str, *, point: int | None = None, listing: bool = False) -> dict[str, str]:
    """What bash says about a command line with the cursor at `point`."""
    return {
        "COMP_LINE": text,
        "COMP_POINT": str(len(text.encode()) if point is None else point),
        "COMP_TYPE": "63" if listing else "9",
        "COMP_WORDBREAKS": WORD_BREAKS,
        "COLUMNS": "40",
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_about_its_program(shell: str) -> None:
    text = script(shell, "forge-integration")
    assert "_forge_integration_completion" in text
    assert not {"PROGRAM", "FUNCTION", "VARIABLE", "FILES"} & set(text.split())


@pytest.mark.parametrize(
    ("text", "words", "typed"),
    [
        ("solstice", [], ""),
        ("solstice ", [], ""),
        ("solstice sho", [], "sho"),
        ("solstice runs --state ", ["runs", "--state"], ""),
        ("solstice runs --state=fa", ["runs"], "--state=fa"),
        ("solstice workers show 'quay:7", ["workers", "show"], "quay:7"),
        ("solstice logs 'a b' \"", ["logs", "a b"], ""),
        ("/opt/bin/solstice show a\\ b", ["show"], "a b"),
    ],
)
def test_bash_gives_a_line_of_words(text: str, words: list[str], typed: str) -> None:
    assert words_of("bash", [], line(text)) == (words, typed)


def test_what_is_behind_the_cursor_does_not_count() -> None:
    assert words_of("bash", [], line("solstice schö --json", point=14)) == ([], "schö")


def test_other_shells_give_the_words_themselves() -> None:
    assert words_of("zsh", ["runs", "--state", ""], {}) == (["runs", "--state"], "")
    assert words_of("fish", [], {}) == ([], "")


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("solstice show 3", "3fa9", "3fa9"),
        ("solstice runs --state=f", "--state=failed", "failed"),
        ("solstice workers show quay:", "quay:7", "7"),
        ("solstice workers show 'quay:", "quay:7", "quay:7"),
        ("solstice schedules show ", "a night's $(build)", r"a\ night\'s\ \$\(build\)"),
        ("solstice schedules show 'a ", "a $(build)", "a $(build)"),
    ],
)
def test_bash_is_given_what_stands_behind_its_last_word_break(text: str, value: str, written: str) -> None:
    assert answer("bash", [Completion(value, "meaning")], line(text)) == written


def test_bash_lists_what_candidates_mean_as_far_as_there_is_room() -> None:
    found = [
        Completion("3fa9", "run of acme/anvil, succeeded, 5 min ago"),
        Completion("77", ""),
    ]
    listed = answer("bash", found, line("solstice show ", listing=True)).splitlines()
    assert listed == ["3fa9  (run of acme/anvil, succeeded, 5 ", "77"]
    assert answer("bash", found[:1], line("solstice show ", listing=True)) == "3fa9"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_given_the_meaning_behind_a_tab(shell: str) -> None:
    assert answer(shell, [Completion("--all", "All"), Completion("x")], {}) == "--all\tAll\nx\t"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_strangers_words_add_no_line_and_steer_no_terminal(shell: str) -> None:
    found = [
        Completion("a", "job \x1b]0;title\x07\n\u202eb"),
        Completion("b\nc"),
        Completion("d"),
    ]
    text = answer(shell, found, line("solstice show ", listing=True))
    assert [each[0] for each in text.splitlines()] == ["a", "d"]
    assert text.replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.parametrize("shell", SHELLS)
def test_files_are_left_to_the_shell(shell: str) -> None:
    assert answer(shell, None, line("solstice show ")) == FILES
