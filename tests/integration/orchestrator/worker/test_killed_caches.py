"""A killed process leaves no cache that is half there."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from solstice_orchestrator.worker.caches.cache_entries import ARCHIVES
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from tests.integration.orchestrator.worker import cache_saver
from tests.integration.orchestrator.worker.cache_saver import is_whole, store_of
from tests.servers.s3_server import S3Server

MOMENTS = 30


@contextmanager
def killed_savers(folder: Path, moments: int, *bucket: str) -> Iterator[CacheStore]:
    """The store after so many processes were killed, each at another moment of its work."""
    rng = random.Random(30)
    with subprocess.Popen(
        [sys.executable, "-m", cache_saver.__name__, str(folder), *bucket],
        cwd=Path(__file__).parents[4],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forking:
        assert forking.stdin is not None
        assert forking.stdout is not None
        for _ in range(moments):
            before = len(list(folder.glob("saved/*")))
            forking.stdin.write("again\n")
            forking.stdin.flush()
            pid = int(forking.stdout.readline())
            while len(list(folder.glob("saved/*"))) == before:
                time.sleep(0.001)
            time.sleep(rng.uniform(0.0, 0.09))
            os.kill(pid, signal.SIGKILL)
        forking.stdin.close()
        forking.wait()
    yield store_of(folder, *bucket)


def expect_whole(folder: Path, store: CacheStore) -> None:
    """Check that all that is found is what was saved, whole."""
    entries = [used.entry for used in store.entries()]
    assert entries
    for entry in entries:
        with store.open(entry) as archive:
            assert hashlib.sha256(archive.read()).hexdigest() == entry.digest
        assert is_whole(folder / "saved" / entry.key.removeprefix("c-") / "source/c")
    for stored in store.objects.list(ARCHIVES):
        with store.objects.open(stored.name) as content:
            assert hashlib.sha256(content.read()).hexdigest() == stored.name.rpartition("/")[2]
    restored = list(folder.glob("restored/*/source/c"))
    assert restored
    assert all(map(is_whole, restored))
    assert {each.parts[-3] for each in restored} <= {each.key.removeprefix("c-") for each in entries}


def test_a_killed_process_leaves_nothing_half_there_in_a_directory(tmp_path: Path) -> None:
    with killed_savers(tmp_path, MOMENTS) as store:
        expect_whole(tmp_path, store)
        saved, entries = len(list(tmp_path.glob("saved/*"))), len(store.entries())
        # Otherwise none was killed in the midst of saving, or of restoring.
        assert entries < saved
        assert list(tmp_path.glob("caches/incoming/*"))
        assert len(list(tmp_path.glob("restored/*"))) > len(list(tmp_path.glob("restored/*/source/c")))


def test_a_killed_process_leaves_nothing_half_there_in_a_bucket(tmp_path: Path) -> None:
    with S3Server() as server:
        bucket = (server.endpoint, server.credentials())
        store_of(tmp_path, *bucket).objects.touch("made")
        with killed_savers(tmp_path, MOMENTS, *bucket) as store:
            expect_whole(tmp_path, store)
            assert len(store.entries()) < len(list(tmp_path.glob("saved/*")))
