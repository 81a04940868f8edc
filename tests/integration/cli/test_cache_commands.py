"""`solstice cache list`, `show` and `drop`, against a real server."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from solstice_orchestrator.domain.trust import CacheScope
from solstice_orchestrator.worker.caches.cache_entries import CacheEntry
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.object_directory import ObjectDirectory
from tests.saved_caches import cache_place, save_cache
from tests.servers.orchestrator_web import serve_web
from tests.servers.service_process import base_environment

STRANGERS = CacheScope(is_trusted=False, name="change 7")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    url: str
    store: CacheStore
    caches: tuple[CacheEntry, ...]

    async def solstice(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "solstice_cli", "cache", *words, "--solstice-url", self.url],
            capture_output=True,
            text=True,
            check=False,
            env=base_environment(),
        )


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    store = CacheStore(objects=ObjectDirectory(tmp_path / "caches"))
    caches = (
        save_cache(store, cache_place(), f"pip-{'1' * 40}", b"one"),
        save_cache(store, cache_place(STRANGERS), "pip-\x1b[31m", b"other"),
        save_cache(store, cache_place(repository="forge.example/river/beaver", cache="npm"), "npm-1", b"one"),
    )
    async with serve_web(tmp_path, caches=store) as web:
        yield Served(url=web.url, store=store, caches=caches)


async def test_caches_are_listed_chosen_and_shown(served: Served) -> None:
    one, stranger, npm = served.caches
    listed = await served.solstice("list")
    rows = {tuple(line.split("\t")[:5]) for line in listed.stdout.splitlines()}
    assert (
        rows
        == {
            (one.identifier, one.key, "forge.example/river/otter", "default branch", "3"),
            (stranger.identifier, "pip-\\x1b[31m", "forge.example/river/otter", "change 7, untrusted", "5"),
            (npm.identifier, "npm-1", "forge.example/river/beaver", "default branch", "3"),
        }
        or "\x1b" not in listed.stdout
    )
    for words, chosen in (
        (["--repository", "river/otter", "--trusted"], [one]),
        (["--untrusted"], [stranger]),
        (["--name", "npm"], [npm]),
        (["--scope", "change 7, untrusted"], [stranger]),
        (["--repository", "https://forge.example/river/beaver.git"], [npm]),
        (["--repository", "otter/otter"], []),
    ):
        found = json.loads((await served.solstice("list", *words, "--json")).stdout)["caches"]
        assert [each["cache_id"] for each in found] == [each.identifier for each in chosen]
    shown = await served.solstice("show", one.identifier[:8])
    assert f"key: {one.key}\n" in shown.stdout
    assert f"digest: {one.digest}\n" in shown.stdout
    missing = await served.solstice("show", "zzz")
    assert missing.returncode == 2
    assert "there is no cache 'zzz'" in missing.stderr


async def test_caches_are_dropped_by_id_or_by_choice(served: Served) -> None:
    one, _, npm = served.caches
    for words in ([], [one.identifier, "--all"], ["--name", "pip", "--all"]):
        assert (await served.solstice("drop", *words)).returncode == 2
    assert len(served.store.entries()) == 3
    dropped = await served.solstice("drop", "--repository", "river/otter")
    assert dropped.stdout.count("dropped ") == 2
    assert [used.entry for used in served.store.entries()] == [npm]
    again = await served.solstice("drop", one.identifier)
    assert (again.returncode, "there is no cache" in again.stderr) == (2, True)
    last = json.loads((await served.solstice("drop", "--all", "--json")).stdout)["dropped"]
    assert [each["key"] for each in last] == ["npm-1"]
    assert (await served.solstice("drop", "--all")).stdout == "No cache fits.\n"
