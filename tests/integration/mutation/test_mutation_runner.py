"""`./just mutate` on a small project: its findings, its time limit, no leftovers."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutation.choosing import PACKAGES, ROOT
from tests.polling import wait_until

# A fresh process for a change takes many times as long on a busy machine.
pytestmark = pytest.mark.timeout(300)

MODULE = "solstice_common/toy.py"
SOURCE = """
    ANSWERS = {1} | {2}


    def fits(used: int, limit: int) -> bool:
        return used < limit
"""
GOOD = """
    import pytest

    from solstice_common.toy import ANSWERS, fits


    @pytest.mark.parametrize(("used", "fit"), [(1, True), (2, False)])
    def test_what_is_full_takes_no_more(used: int, fit: bool) -> None:
        assert fits(used, 2) is fit


    def test_answers() -> None:
        assert ANSWERS == {1, 2}
"""
WEAK = """
    from solstice_common.toy import fits


    def test_there_is_room() -> None:
        assert fits(1, 3)
"""
CACHED = """
    from functools import cache


    @cache
    def fits(used: int, limit: int) -> bool:
        return used < limit
"""
CALLED_TWICE = """
    from solstice_common.toy import fits


    def test_it_answers() -> None:
        fits(2, 2)


    def test_what_is_full_takes_no_more() -> None:
        assert not fits(2, 2)
"""
FAILING = WEAK + "        assert fits(3, 3)\n"
DRAINED = """
    def drained(left: int) -> int:
        while left:
            left = left - 1
        return left
"""
ENDLESS = """
    import os
    from pathlib import Path

    from solstice_common.toy import drained


    def test_it_is_drained() -> None:
        with Path(os.environ["TRIED_BY"]).open("a") as file:
            print(os.getpid(), file=file)
        assert drained(3) == 0
"""
"""A module that runs forever when its counting is changed."""


PYTEST = """
[tool.pytest.ini_options]
pythonpath = ["."]
# Its plugin takes longer to import than these tests run.
addopts = ["-p", "no:schemathesis"]
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A tree like ours with one module, and its own folder for temporary files."""

    root: Path
    temporary: Path
    tried_by: Path
    """The file with the ids of processes that ran an endless test, one per line."""

    def mutate(self, *flags: str) -> subprocess.Popen[str]:
        paths = [str(self.root / base.relative_to(ROOT)) for base in PACKAGES.values()]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.mutation", "toy", *flags],
            cwd=self.root,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "PYTHONDONTWRITEBYTECODE": "1",
                "TMPDIR": str(self.temporary),
                "TRIED_BY": str(self.tried_by),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def mutated(self, *flags: str) -> tuple[str, int]:
        """Run it; its output and exit code."""
        process = self.mutate(*flags)
        printed, _ = process.communicate()
        return printed, process.returncode

    def files(self) -> Mapping[str, bytes]:
        """All that is no cache."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and ".grimp_cache" not in path.parts
        }

    def tries(self) -> list[int]:
        return [int(line) for line in self.tried_by.read_text().splitlines()]


Make = Callable[[str, str], Project]


@pytest.fixture
def project(tmp_path: Path) -> Make:
    def make(module: str, tests: str) -> Project:
        root, temporary = tmp_path / "project", tmp_path / "temporary"
        for name, base in PACKAGES.items():
            package = root / base.relative_to(ROOT) / name
            package.mkdir(parents=True)
            (package / "__init__.py").touch()
        (root / "common" / MODULE).write_text(dedent(module))
        shutil.copytree(
            ROOT / "tests/mutation", root / "tests/mutation", ignore=shutil.ignore_patterns("__pycache__")
        )
        for tier in ("unit", "contract"):
            (root / "tests" / tier).mkdir()
        (root / "tests/unit/test_toy.py").write_text(dedent(tests))
        (root / "pyproject.toml").write_text(PYTEST)
        temporary.mkdir()
        tried_by = tmp_path / "tried-by"
        tried_by.touch()
        return Project(root, temporary, tried_by)

    return make


def row(printed: str) -> dict[str, int]:
    """The line of the module, by the titles of the table."""
    (line,) = (line for line in printed.splitlines() if "solstice_common.toy" in line and "│" in line)
    titles = ("mutants", "killed", "timed out", "judged", "survived", "not tried", "%")
    return dict(zip(titles, map(int, line.replace("│", " ").split()[1:]), strict=True))


@contextmanager
def background(*, is_it: bool) -> Iterator[None]:
    """As a shell does it: what runs in the background ignores SIGINT, and inherits that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if is_it else signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_change_that_no_test_notices_is_shown_and_counted(project: Make) -> None:
    weak = project(SOURCE, WEAK)
    before = weak.files()
    printed, code = weak.mutated("--at-least", "90")
    assert code == 1, printed
    assert "- return used < limit\n  + return used <= limit" in printed
    found = row(printed)
    assert (found["survived"], found["not tried"]) == (found["mutants"], 0)
    assert weak.files() == before
    assert list(weak.temporary.iterdir()) == []


def test_changes_that_a_test_notices_are_killed(project: Make) -> None:
    printed, code = project(SOURCE, GOOD).mutated("--at-least", "100")
    found = row(printed)
    assert (code, found["killed"]) == (0, found["mutants"]), printed


def test_a_test_that_gets_its_answer_from_a_cache_is_asked_as_well(project: Make) -> None:
    printed, code = project(CACHED, CALLED_TWICE).mutated("--at-least", "100")
    assert code == 0, printed


def test_a_change_that_never_ends_is_given_up_and_no_other_is_begun_when_time_is_over(project: Make) -> None:
    # A change is given ten seconds and more; time is over before, so this is the only one of several.
    found = row(project(DRAINED, ENDLESS).mutated("--seconds", "9")[0])
    assert found["timed out"] == 1
    assert found["not tried"] >= 1


def test_without_time_nothing_is_shown_to_be_killed(project: Make) -> None:
    printed, code = project(SOURCE, GOOD).mutated("--seconds", "0", "--at-least", "1")
    found = row(printed)
    assert (code, found["not tried"]) == (1, found["mutants"]), printed


def test_a_test_that_fails_unchanged_is_named(project: Make) -> None:
    printed, code = project(SOURCE, FAILING).mutated("--at-least", "1")
    assert code == 1
    assert "fails unchanged, and is not asked: tests/unit/test_toy.py::test_there_is_room" in printed


@pytest.mark.parametrize(
    ("number", "in_background"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM in the background"],
)
async def test_stopped_in_the_middle_it_leaves_the_tree_as_it_was_and_no_process(
    project: Make, number: signal.Signals, *, in_background: bool
) -> None:
    endless = project(DRAINED, ENDLESS)
    before = endless.files()
    with background(is_it=in_background):
        process = endless.mutate()
    # The first runs the tests unchanged; the second is a mutant.
    await wait_until(lambda: len(endless.tries()) > 1)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    printed, _ = process.communicate()
    assert process.returncode == 128 + number, printed
    assert [pid for pid in endless.tries() if lives(pid)] == []
    assert endless.files() == before
    assert list(endless.temporary.iterdir()) == []
