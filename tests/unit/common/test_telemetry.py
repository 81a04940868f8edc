import random
import re

import pytest

from solstice_common.telemetry import child_of, new_traceparent

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


class Zeros(random.Random):
    def getrandbits(self, _k: int, /) -> int:
        return 0


def test_a_new_trace_has_the_form_of_the_recommendation() -> None:
    rng = random.Random(1)
    seen = {new_traceparent(rng) for _ in range(100)}
    assert len(seen) == 100
    assert all(re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", traceparent) for traceparent in seen)


def test_a_child_keeps_the_trace_and_its_flags_and_has_its_own_span() -> None:
    child = child_of(PARENT, random.Random(1))
    assert child[:36] == PARENT[:36]
    assert child[-3:] == PARENT[-3:]
    assert child[36:52] != PARENT[36:52]
    assert len(child) == len(PARENT)


@pytest.mark.parametrize(
    "unreadable",
    [None, "", "nonsense", PARENT + "0", PARENT.upper(), "01" + PARENT[2:],
     "00-" + "0" * 32 + "-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01"],
)  # fmt: skip
def test_what_cannot_be_read_starts_a_new_trace(unreadable: str | None) -> None:
    assert child_of(unreadable, random.Random(1)) == new_traceparent(random.Random(1))


def test_no_identifier_is_all_zeros() -> None:
    assert new_traceparent(Zeros()) == f"00-{1:032x}-{1:016x}-01"
