"""The results of all tests of an attempt in few bytes each. Pure.

Names are not stored: each test is a digest of its full name, its state and its time, sorted by digest. So an attempt
with 10,000 tests takes 130 kB, and the history of a test is looked up in many attempts.
"""

import struct
import sys
from array import array
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from solstice_orchestrator.reports.values import TestCaseResult, TestState

MAX_RESULTS: Final = 200_000
"""Tests of one attempt whose results are stored; further ones are counted alone."""
_STATES: Final = (TestState.PASSED, TestState.SKIPPED, TestState.FAILED, TestState.ERRORED)
"""By number, the worst last."""
_NUMBERS: Final = {state: number for number, state in enumerate(_STATES)}
_FIRST_BAD: Final = _NUMBERS[TestState.FAILED]
_STATE: Final = 0x0F
_FLAKY: Final = 0x10
_ALSO_PASSED: Final = 0x20
"""It passed at least once, also where its state is another."""
_PER_TEST: Final = 13


class TestResult(Struct, frozen=True):
    """The result of one test in one attempt."""

    __test__ = False

    state: TestState
    """The worst, where it ran several times."""
    seconds: float
    flaky: bool
    """It passed and failed in this attempt."""


def digest_of(full_name: str) -> int:
    """Return the digest by which a test is found."""
    return int.from_bytes(blake2b(full_name.encode(errors="replace"), digest_size=8).digest(), "big")


class ResultsWriter:
    """Collects the results of one attempt."""

    def __init__(self) -> None:
        self._results: dict[int, tuple[int, float]] = {}
        self.left_out = 0

    def add(self, test: TestCaseResult) -> None:
        passed = _ALSO_PASSED if test.flaky or test.state is TestState.PASSED else 0
        flaky = _FLAKY if test.flaky else 0
        self._add(digest_of(test.full_name), _NUMBERS[test.state] | passed | flaky, test.seconds)

    def add_all(self, results: bytes) -> None:
        """Add the results of another report."""
        count = len(results) // _PER_TEST
        seconds = struct.unpack_from(f">{count}f", results, 9 * count)
        for digest, packed, each in zip(
            digests_in(results), results[8 * count : 9 * count], seconds, strict=True
        ):
            self._add(digest, packed, each)

    def _add(self, digest: int, packed: int, seconds: float) -> None:
        known = self._results.get(digest)
        if known is not None:
            number = max(known[0] & _STATE, packed & _STATE)
            flags = (known[0] | packed) & ~_STATE
            if flags & _ALSO_PASSED and number >= _FIRST_BAD:
                flags |= _FLAKY
            self._results[digest] = (number | flags, known[1] + seconds)
        elif len(self._results) == MAX_RESULTS:
            self.left_out += 1
        else:
            self._results[digest] = (packed, seconds)

    def encoded(self) -> bytes:
        """Return the digests in order, then the states, then the times."""
        found = sorted(self._results.items())
        digests = struct.pack(f">{len(found)}Q", *(digest for digest, _ in found))
        states = bytes(result[0] for _, result in found)
        seconds = struct.pack(f">{len(found)}f", *(min(result[1], 1e9) for _, result in found))
        return digests + states + seconds


def encode_results(tests: Iterable[TestCaseResult]) -> bytes:
    """Return the results of these tests."""
    writer = ResultsWriter()
    for test in tests:
        writer.add(test)
    return writer.encoded()


def merged_results(reports: Iterable[bytes]) -> bytes:
    """Return the results of several reports as those of one."""
    writer = ResultsWriter()
    for results in reports:
        writer.add_all(results)
    return writer.encoded()


def find_result(results: bytes, digest: int) -> TestResult | None:
    """Return the result of a test; None: the attempt has none."""
    count = len(results) // _PER_TEST
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        found = int.from_bytes(results[8 * middle : 8 * middle + 8], "big")
        if found < digest:
            low = middle + 1
        else:
            high = middle
    if low == count or int.from_bytes(results[8 * low : 8 * low + 8], "big") != digest:
        return None
    return _result(results, count, low)


def _result(results: bytes, count: int, index: int) -> TestResult | None:
    packed = results[8 * count + index]
    number = packed & _STATE
    if number >= len(_STATES):
        # Of a newer version.
        return None
    (seconds,) = struct.unpack_from(">f", results, 9 * count + 4 * index)
    return TestResult(_STATES[number], round(seconds, 4), bool(packed & _FLAKY))


def digests_in(results: bytes) -> "array[int]":
    """Return the digests of all tests, in order."""
    count = len(results) // _PER_TEST
    found = array("Q", results[: 8 * count])
    if sys.byteorder == "little":
        found.byteswap()
    return found
