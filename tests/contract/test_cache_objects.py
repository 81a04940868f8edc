"""What every store of caches promises about objects and entries."""

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from solstice_orchestrator.domain.trust import CacheScope
from solstice_orchestrator.worker.caches.cache_entries import CacheEntry, archive_of, use_of
from solstice_orchestrator.worker.caches.cache_limits import CacheLimits
from solstice_orchestrator.worker.caches.cache_objects import CacheObjects
from solstice_orchestrator.worker.caches.cache_store import ORPHAN_SECONDS, CacheStore
from solstice_orchestrator.worker.caches.object_bucket import BucketSettings, open_bucket
from solstice_orchestrator.worker.caches.object_directory import INCOMING_SECONDS, ObjectDirectory
from tests.saved_caches import cache_place, save_cache
from tests.servers.s3_server import S3Server

BRANCH = CacheScope(is_trusted=True, name="branch fix")


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    return CacheStore(objects=ObjectDirectory(tmp_path / "caches"))


def names(objects: CacheObjects, folder: str) -> list[str]:
    return sorted(each.name for each in objects.list(folder))


def test_an_object_is_there_once_it_is_whole(store: CacheStore) -> None:
    objects = store.objects
    assert names(objects, "a") == []
    assert objects.put_new("a/b/c", b"one")
    assert not objects.put_new("a/b/c", b"two")
    with objects.open("a/b/c") as file:
        assert file.read() == b"one"
    with objects.incoming() as written:
        written.file.write(b"x" * 3_000_000)
        assert names(objects, "a") == ["a/b/c"]
        objects.put(written, "a/b/large")
    (_, large) = sorted(objects.list("a/b"))
    assert (large.name, large.size) == ("a/b/large", 3_000_000)
    assert abs(large.modified - time.time()) < 60
    with objects.open("a/b/large") as file:
        assert file.read(2) == b"xx"
        assert len(file.read(2_999_999)) + len(io.BytesIO(file.read()).read()) == 2_999_998
    objects.touch("a/use")
    objects.touch("a/use")
    assert names(objects, "a") == ["a/b/c", "a/b/large", "a/use"]
    for each in ("a/b/c", "a/b/c", "a/never"):
        objects.remove(each)
    assert names(objects, "a") == ["a/b/large", "a/use"]
    with pytest.raises(FileNotFoundError), objects.open("a/b/c") as file:
        file.read(1)


def test_of_many_at_once_one_gets_the_name(store: CacheStore) -> None:
    objects = store.objects
    begin = threading.Barrier(8)

    def put(number: int) -> bool:
        begin.wait()
        return objects.put_new("a/b", b"%d" % number)

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(put, range(8)))
    assert sum(won) == 1
    with objects.open("a/b") as file:
        assert file.read() == b"%d" % won.index(True)


def test_the_exact_key_goes_first_then_the_longest_fallback_then_the_newest(store: CacheStore) -> None:
    own, rest = cache_place(BRANCH), cache_place()
    first = save_cache(store, rest, "pip-a-1", b"1")
    time.sleep(1.1)
    second = save_cache(store, rest, "pip-a-2", b"2")
    third = save_cache(store, own, "pip-b", b"3")
    save_cache(store, cache_place(cache="pip-tools"), "pip-a-9", b"4")
    save_cache(store, cache_place(repository="river/beaver"), "pip-a-9", b"5")

    def find(key: str, *fallbacks: str) -> CacheEntry | None:
        return store.find([own, rest], key, fallbacks)

    assert find("pip-a-1") == first
    assert find("pip-a") is None
    assert find("pip-c", "pip-a-") == second
    assert find("pip-c", "pip-", "pip-a-") == second
    assert find("pip-c", "pip-") == third
    assert find("pip-c", "pip-x") is None
    assert find("pip-b", "pip-a") == third
    assert store.find([rest], "pip-b", []) is None
    # The first that comes keeps the key.
    assert replace(save_cache(store, rest, "pip-a-1", b"other"), digest=first.digest) != find("pip-a-1")
    assert find("pip-a-1") == first
    assert {used.entry.key for used in store.entries()} == {"pip-a-1", "pip-a-2", "pip-b", "pip-a-9"}


def test_an_entry_in_a_place_that_it_does_not_name_is_no_entry(store: CacheStore) -> None:
    entry = save_cache(store, cache_place(CacheScope(is_trusted=False, name="change 7")), "pip-1")
    with store.objects.open(entry.name) as file:
        content = file.read()
    store.objects.put_new(cache_place().name("pip-1"), content)
    assert store.find([cache_place()], "pip-1", ["pip-"]) is None
    store.objects.put_new(cache_place().name("pip-2"), b"{}")
    store.objects.put_new("entries/x/y/z/not-a-key", b"{}")
    assert store.find([cache_place()], "pip-2", ["pip-"]) is None
    assert [used.entry for used in store.entries()] == [entry]


def test_what_is_removed_leaves_archives_that_others_need(store: CacheStore) -> None:
    one, two = (
        save_cache(store, cache_place(), "pip-1", b"same"),
        save_cache(store, cache_place(BRANCH), "pip-1", b"same"),
    )
    store.used(one)
    later = replace(store, clock=lambda: time.time() + 2 * ORPHAN_SECONDS)
    later.remove([one])
    assert names(store.objects, "uses") == []
    assert names(store.objects, "archives") == [archive_of(two.digest)]
    later.remove([two])
    assert names(store.objects, "archives") == []
    assert store.entries() == []


def test_a_sweep_removes_what_killed_processes_left(store: CacheStore) -> None:
    needed = save_cache(store, cache_place(), "pip-1")
    store.used(needed)
    with store.objects.incoming() as archive:
        store.objects.put(archive, archive_of("0" * 64))
    store.objects.touch(use_of(cache_place().name("gone")))
    assert list(store.sweep()) == []
    assert len(names(store.objects, "archives")) == 2
    later = replace(store, clock=lambda: time.time() + 2 * ORPHAN_SECONDS)
    assert list(later.sweep()) == []
    assert names(store.objects, "archives") == [archive_of(needed.digest)]
    assert names(store.objects, "uses") == [use_of(needed.name)]


def test_a_trial_leaves_nothing(store: CacheStore) -> None:
    entry = save_cache(store, cache_place(), "pip-1")
    assert [used.entry for used in store.try_out()] == [entry]
    assert names(store.objects, "trials") == []


def test_unused_entries_go_and_used_ones_stay(store: CacheStore) -> None:
    limits = CacheLimits(unused_seconds=1000.0)
    one = save_cache(store, cache_place(), "pip-1")
    later = replace(store, limits=limits, clock=lambda: time.time() + 1100.0)
    assert [each.key for each in later.sweep()] == ["pip-1"]
    assert store.find([cache_place()], "pip-1", []) is None
    assert save_cache(store, cache_place(), "pip-1").name == one.name


def test_parallel_saves_of_several_orchestrators_stay_below_the_limits(store: CacheStore) -> None:
    objects = store.objects
    limits = CacheLimits(repository_bytes=40_000, all_bytes=60_000)
    stores = [CacheStore(objects=objects, limits=limits) for _ in range(4)]

    def save(number: int) -> None:
        where = cache_place(repository=f"repository-{number % 3}", cache=f"c{number % 5}")
        save_cache(stores[number % 4], where, f"c{number % 5}-{number}", bytes([number]) * 9_000)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(save, range(40)))
    entries = stores[0].entries()
    assert 27_000 <= sum(used.entry.size for used in entries) <= 60_000
    for used in entries:
        with stores[1].open(used.entry) as file:
            assert file.read() == bytes([int(used.entry.key.partition("-")[2])]) * 9_000


def test_a_directory_loses_what_no_process_writes_any_more(tmp_path: Path) -> None:
    objects = ObjectDirectory(tmp_path / "new/caches")
    objects.sweep(time.time())
    objects.put_new("a/b/c", b"")
    (tmp_path / "new/caches/incoming/left").touch()
    objects.remove("a/b/c")
    objects.sweep(time.time())
    assert (tmp_path / "new/caches/incoming/left").exists()
    objects.sweep(time.time() + 2 * INCOMING_SECONDS)
    assert list((tmp_path / "new/caches").rglob("*")) == [tmp_path / "new/caches/incoming"]
    assert objects.put_new("a/b/c", b"")
    assert (objects.room() or 0) > 0
    assert (tmp_path / "new/caches").stat().st_mode & 0o777 == 0o700


PROMISES: Final = (
    test_an_object_is_there_once_it_is_whole,
    test_of_many_at_once_one_gets_the_name,
    test_the_exact_key_goes_first_then_the_longest_fallback_then_the_newest,
    test_an_entry_in_a_place_that_it_does_not_name_is_no_entry,
    test_what_is_removed_leaves_archives_that_others_need,
    test_a_sweep_removes_what_killed_processes_left,
    test_a_trial_leaves_nothing,
    test_unused_entries_go_and_used_ones_stay,
    test_parallel_saves_of_several_orchestrators_stay_below_the_limits,
)


def test_a_bucket_keeps_the_same_promises_and_says_in_one_line_what_fails(tmp_path: Path) -> None:
    """One server for all: it takes seconds to start."""
    local = ObjectDirectory(tmp_path / "local")
    with S3Server() as server:
        for number, promise in enumerate(PROMISES):
            url = f"s3://caches/{number}"
            settings = BucketSettings(url=url, endpoint=server.endpoint, credentials=server.credentials())
            bucket = open_bucket(settings, local)
            # The server makes a bucket for the first object in it.
            bucket.touch("made")
            promise(CacheStore(objects=bucket))
        assert [each for each in (tmp_path / "local").rglob("*") if each.is_file()] == []
        wrong = tmp_path / "credentials.toml"
        wrong.write_text('key_id = "caches"\nsecret = "not-the-secret"\n')
        for endpoint in (server.endpoint, "http://127.0.0.1:1"):
            settings = BucketSettings(url="s3://caches/x", endpoint=endpoint, credentials=str(wrong))
            with pytest.raises(OSError, match=r"^s3://caches/x at http") as caught:
                CacheStore(objects=open_bucket(settings, local)).find([cache_place()], "pip-1", ["pip-"])
            assert len(str(caught.value).splitlines()) == 1
            assert "not-the-secret" not in str(caught.value)
