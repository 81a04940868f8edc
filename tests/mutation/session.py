"""A pytest plugin that runs the collected tests again for each mutant.

Each run is a fork. A change in a function is put into the function object itself, so that every importer gets it; any
other change gets a process that has imported none of our modules. The first fork runs the tests unchanged, and records
which of them ran which line.
"""

import functools
import gc
import json
import math
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import coverage
import pytest

from tests.mutation.changes import Mutant
from tests.mutation.choosing import path_of, unit_tests
from tests.mutation.forks import forked
from tests.mutation.prepared import PreparedProcess
from tests.mutation.swapped import steady_examples

ELSEWHERE: Final = frozenset({"postgresql", "rabbitmq", "rabbitmq-4", "rabbitmq-3"})
SERVERS: Final = frozenset({"rabbitmq", "postgresql", "own_rabbitmq_vhost", "own_postgresql_database"})
AT_MOST_SECONDS: Final = 8.0
"""Seconds of processors for one mutant, by what its tests use unchanged; so a busy machine tries it with as many."""
AT_IMPORT_SECONDS: Final = 4.0
"""The same for changes that need a fresh process."""
TIMEOUT_FACTOR: Final = 6.0
"""The factor by which a mutant may be slower, plus ten seconds."""


@dataclass
class Unchanged:
    """The results of the tests on the unchanged module."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by test, without those that failed."""
    used: dict[str, float] = field(default_factory=dict)
    """Seconds of processors by test, including those of its processes that ended."""
    failed: list[str] = field(default_factory=list)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    """The tests that ran each line, by module."""


def pytest_sessionstart() -> None:
    steady_examples()
    # A shell makes its background processes ignore it, and so do all that this one begins.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out tests with servers: SQLite and memory suffice for a pure module."""
    items[:] = [item for item in items if not _needs_server(item)]


def _needs_server(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    fixtures = set(getattr(item, "fixturenames", ()))
    return bool(SERVERS & fixtures) or any(isinstance(each, str) and each in ELSEWHERE for each in parameters)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    if session.testsfailed:
        message = "the tests could not be collected"
        raise pytest.UsageError(message)
    plan = json.loads(Path(os.environ["SOLSTICE_MUTATION_PLAN"]).read_text())
    changes = [Mutant(**each) for each in plan["mutants"]]
    items = {item.nodeid: item for item in session.items}
    with Path(plan["results"]).open("a", buffering=1) as reported, PreparedProcess() as prepared:
        unchanged = _run_unchanged(items, {mutant.module for mutant in changes})
        reported.write(json.dumps({"failed_unchanged": unchanged.failed}) + "\n")
        ends_at = time.monotonic() + plan["seconds"]
        functions = _functions({str(path_of(mutant.module)): mutant.module for mutant in changes})
        for number, mutant in enumerate(changes):
            if time.monotonic() > ends_at:
                break
            tests = _tests_of(mutant, unchanged)
            if not tests:
                # What no test runs may run while a module is imported.
                mutant = replace(mutant, function=None)  # noqa: PLW2901
                tests = _tests_of(mutant, unchanged)
            end = _try(mutant, tests, items, functions, unchanged, prepared) if tests else "survived"
            reported.write(json.dumps({"number": number, "end": end, "tests": len(tests)}) + "\n")
    return True


def _tests_of(mutant: Mutant, unchanged: Unchanged) -> Sequence[str]:
    """The tests that the change may affect, as time allows.

    They run the changed statement, or may depend on what it left when it was imported. Unit tests and quick ones come
    first.
    """
    lines = unchanged.lines.get(mutant.module, {})
    changed_lines = range(mutant.first_line, mutant.last_line + 1) if mutant.function else lines
    found = {test for line in changed_lines for test in lines.get(line, ())}
    if not mutant.function:
        # A test that reads a constant runs no line of the module.
        files = set(unit_tests(mutant.module))
        found |= {test for test in unchanged.seconds if test.partition("::")[0] in files}
    stem = f"test_{mutant.module.rpartition('.')[2]}.py"
    order = sorted(
        found, key=lambda test: (stem not in test, not test.startswith("tests/unit"), unchanged.used[test])
    )
    left = AT_MOST_SECONDS if mutant.function else AT_IMPORT_SECONDS
    chosen: list[str] = []
    for test in order:
        cost = unchanged.used[test] + 0.005
        # A slow test does not displace the quick ones behind it.
        if cost <= left or not chosen:
            left -= cost
            chosen.append(test)
    return chosen


def _run_unchanged(items: Mapping[str, pytest.Item], modules: set[str]) -> Unchanged:
    with tempfile.NamedTemporaryFile() as file:
        if forked(lambda: _note_unchanged(items, modules, Path(file.name)), math.inf):
            message = "the tests of the unchanged module ended the process that ran them"
            raise pytest.UsageError(message)
        return Unchanged(**_with_numbers(json.loads(Path(file.name).read_text())))


def _with_numbers(noted: dict[str, Any]) -> dict[str, Any]:
    lines = {
        module: {int(line): tests for line, tests in each.items()} for module, each in noted["lines"].items()
    }
    return {**noted, "lines": lines}


def _note_unchanged(items: Mapping[str, pytest.Item], modules: set[str], file: Path) -> bool:
    paths = {module: str(path_of(module)) for module in modules}
    tracer = coverage.Coverage(data_file=None, config_file=False, include=list(paths.values()))
    # Of a module of classes and constants alone, no test runs a line.
    tracer.set_option("run:disable_warnings", ["no-data-collected"])
    tracer.start()
    seconds, used, failed = {}, {}, []
    caches = _caches()
    for nodeid, item in items.items():
        # A test that got its answer from a cache would not be linked to the line that makes it.
        for each in caches:
            each.cache_clear()
        tracer.switch_context(nodeid)
        began, used_before = time.perf_counter(), _processor_seconds()
        if _passes([item]):
            seconds[nodeid] = time.perf_counter() - began
            used[nodeid] = _processor_seconds() - used_before
        else:
            failed.append(nodeid)
    tracer.stop()
    lines = {}
    for module, path in paths.items():
        by_line = tracer.get_data().contexts_by_lineno(path)
        lines[module] = {line: [test for test in tests if test in seconds] for line, tests in by_line.items()}
    file.write_text(json.dumps({"seconds": seconds, "used": used, "failed": failed, "lines": lines}))
    return True


def _processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _try(
    mutant: Mutant,
    tests: Sequence[str],
    items: Mapping[str, pytest.Item],
    functions: Mapping[tuple[str, str], Sequence[FunctionType]],
    unchanged: Unchanged,
    prepared: PreparedProcess,
) -> str:
    timeout_seconds = 10 + TIMEOUT_FACTOR * sum(unchanged.seconds[test] for test in tests)
    old = functions.get((mutant.module, mutant.function)) if mutant.function else None
    new = _code_of(mutant) if old else None
    if not old or new is None or any(len(each.__code__.co_freevars) != len(new.co_freevars) for each in old):
        status = prepared.run(mutant.module, mutant.source, tests, timeout_seconds + 20)
    else:

        def try_it() -> bool:
            for each in old:
                each.__code__ = new
            _forget_what_was_cached()
            return _passes([items[test] for test in tests])

        status = forked(try_it, timeout_seconds)
    return "timed out" if status is None else "killed" if status else "survived"


class _Failures:
    def __init__(self) -> None:
        self.seen = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seen = self.seen or report.failed


def _passes(items: Sequence[pytest.Item]) -> bool:
    """Whether all tests pass; stop after the first failure."""
    failures = _Failures()
    manager = items[0].config.pluginmanager
    manager.register(failures)
    try:
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failures.seen:
                return False
    finally:
        manager.unregister(failures)
    return True


def _functions(modules: Mapping[str, str]) -> Mapping[tuple[str, str], Sequence[FunctionType]]:
    """The function objects of these modules, by module and qualified name."""
    found: dict[tuple[str, str], list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in modules:
            key = modules[each.__code__.co_filename], each.__code__.co_qualname
            found.setdefault(key, []).append(each)
    return found


def _code_of(mutant: Mutant) -> CodeType | None:
    """The changed function; None when several have its name."""
    found = [
        each
        for each in _codes(compile(mutant.source, str(path_of(mutant.module)), "exec"))
        if each.co_qualname == mutant.function
    ]
    return found[0] if len(found) == 1 else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _forget_what_was_cached() -> None:
    for each in _caches():
        each.cache_clear()


def _caches() -> Sequence[Any]:
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, functools._lru_cache_wrapper)
        # Test modules keep what they have made of the module, too.
        and each.__module__.startswith(("solstice_", "tests.unit.", "tests.contract."))
    ]
