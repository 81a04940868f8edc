"""Keys of caches have places for checksums."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.workflow.job_files.cache_key import (
    CHECKSUM_DIGITS,
    InvalidKey,
    checksums_of,
    filled,
    longest,
)

PLACES = st.sampled_from(["{checksum:a}", "{checksum:a,b/*.lock}", "{checksum:**/c}"])


def test_a_key_names_the_files_of_its_checksums() -> None:
    key = "pip-{checksum:a.txt, b/*.txt}-{checksum:c}"
    assert checksums_of(key) == [("a.txt", "b/*.txt"), ("c",)]
    assert filled(key, {("a.txt", "b/*.txt"): "1" * 64, ("c",): "2" * 64}) == f"pip-{'1' * 40}-{'2' * 40}"


@given(st.lists(st.one_of(st.text(st.characters(exclude_characters="{}"), max_size=9), PLACES), max_size=6))
def test_a_filled_key_is_as_long_as_foreseen(parts: list[str]) -> None:
    key = "".join(parts)
    places = [part for part in parts if part.startswith("{")]
    assert len(checksums_of(key)) == len(places)
    assert len(filled(key, dict.fromkeys(checksums_of(key), "f" * 64)).encode()) == longest(key)


@given(st.text("{}abc:,/*.[]checksum ", max_size=30))
def test_any_other_text_is_refused_or_has_places(text: str) -> None:
    with suppress(InvalidKey):
        assert longest(text) >= len(checksums_of(text)) * CHECKSUM_DIGITS


@pytest.mark.parametrize("key", ["a{", "}a", "{{checksum:a}", "{a}", "{checksum:a,,b}", "{checksum:a/./b}"])
def test_what_names_no_file_is_refused(key: str) -> None:
    with pytest.raises(InvalidKey):
        checksums_of(key)
