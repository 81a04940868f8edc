"""Entries have names that no text of a job can choose."""

from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.domain.trust import CacheScope
from solstice_orchestrator.worker.caches.cache_entries import (
    CacheEntry,
    CachePlace,
    decode_entry,
    encode_entry,
    key_of,
    use_of,
)

TEXTS = st.text(max_size=40)
PLACES = st.builds(
    CachePlace,
    repository=TEXTS,
    scope=st.builds(CacheScope, is_trusted=st.booleans(), name=TEXTS),
    system=TEXTS,
    cache=TEXTS,
    paths=st.lists(TEXTS, max_size=3).map(tuple),
)
SIZES = st.integers(0, 2**40)
ENTRIES = st.builds(
    CacheEntry,
    place=PLACES,
    key=st.text(min_size=1, max_size=37),
    digest=st.just("ab" * 32),
    size=SIZES,
    content_bytes=SIZES,
    files=SIZES,
    created_at=st.floats(0, 2**40),
    job_id=TEXTS,
)


@given(ENTRIES)
def test_an_entry_is_read_as_it_was_written(entry: CacheEntry) -> None:
    assert decode_entry(encode_entry(entry)) == entry
    assert key_of(entry.name) == entry.key
    assert set(entry.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789/")
    assert all(len(part) <= 240 for part in entry.name.split("/"))
    assert use_of(entry.name) == entry.name.replace("entries", "uses", 1)


@given(ENTRIES, ENTRIES)
def test_other_places_or_keys_have_other_names(one: CacheEntry, other: CacheEntry) -> None:
    assert (one.name == other.name) == ((one.place, one.key) == (other.place, other.key))


@given(st.binary(max_size=200) | st.just(b"[]") | st.just(b'{"version":1,"place":{}}'))
def test_other_content_is_no_entry(content: bytes) -> None:
    assert decode_entry(content) is None


@given(st.text(max_size=50))
def test_a_name_of_others_has_no_key(name: str) -> None:
    key = key_of(f"entries/{name}")
    assert key is None or key_of(f"entries/{name.rpartition('/')[2]}") == key
