"""A thousand untrusted runs try to have trusted ones restore what they saved."""

import asyncio
import io
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from solstice_common.messages import JobRequestV1, Source
from solstice_orchestrator.domain.jobs import CacheSpec
from solstice_orchestrator.domain.log_marks import LogMark
from solstice_orchestrator.domain.trust import cache_scopes
from solstice_orchestrator.worker.caches.cache_entries import CachePlace
from solstice_orchestrator.worker.caches.cache_objects import IncomingObject, StoredObject
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.job_caches import CachingJob, JobCaches
from solstice_orchestrator.worker.workspaces import Workspace
from tests.builders import job_request
from tests.saved_caches import cache_place, save_cache

ATTEMPTS: Final = 1000
FORK: Final = "https://forge.example/ada-brook/harbour.git"
EVERY_CHARACTER: Final = "".join(map(chr, range(1, 256)))
TEXTS: Final = (
    *("default branch", "", "change 7", "branch main", "change 7, untrusted", "ref refs/tags/v1", "no ref"),
    *("..", "../../entries", "/", "/etc/passwd", ".", "~", "a/../b", "%2e%2e", "\\..\\", "a\0b", "\x7f", " "),
    *(
        "PIP-1",
        "pip-1",
        "Pip-1",
        "pip\u002d1",
        "pip\u20101",
        "p\u0131p-1",
        "\uff50ip-1",
        "pip-1\u200b",
        "pi\u0301p",
    ),
    *("e\u0301", "\u00e9", "\u202epip", "true", "false", "null", '","name":""', '["",true]', "x" * 100),
    # Braces are places of checksums in keys.
    *(each for each in EVERY_CHARACTER if each not in "{}"),
)
VICTIMS: Final[tuple[dict[str, Any], ...]] = (
    {"ref": "refs/heads/main", "default_branch": "main"},
    {"ref": "refs/heads/fix", "default_branch": "main"},
    {"ref": "refs/heads/change 7, untrusted", "default_branch": "main"},
    {"ref": "refs/tags/v1"},
    {"ref": None, "source": "manual"},
    {"change_number": 7, "ref": "refs/heads/fix"},
)


@dataclass
class MemoryObjects:
    """Objects in memory (`CacheObjects`), so that thousands take no time."""

    folder: Path
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    place: str = "memory"

    def room(self) -> None:
        return None

    @contextmanager
    def incoming(self) -> Iterator[IncomingObject]:
        yield IncomingObject(path=self.folder / "none", file=cast("BinaryIO", io.BytesIO()))

    def put(self, incoming: IncomingObject, name: str) -> None:
        self.objects[name] = cast("io.BytesIO", incoming.file).getvalue(), time.time()

    def put_new(self, name: str, content: bytes) -> bool:
        with self.lock:
            is_new = name not in self.objects
            self.objects.setdefault(name, (content, time.time()))
            return is_new

    def touch(self, name: str) -> None:
        self.objects[name] = b"", time.time()

    def open(self, name: str) -> BinaryIO:
        if name not in self.objects:
            raise FileNotFoundError(name)
        return cast("BinaryIO", io.BytesIO(self.objects[name][0]))

    def list(self, folder: str) -> Iterator[StoredObject]:
        for name, (content, at) in list(self.objects.items()):
            if name.startswith(f"{folder}/"):
                yield StoredObject(name, len(content), at)

    def remove(self, name: str) -> None:
        self.objects.pop(name, None)

    def sweep(self, now: float) -> None:
        pass


class Silence:
    """A log of no interest."""

    async def mark(self, line: LogMark) -> None: ...

    async def write(self, data: bytes) -> None: ...


def workspace(folder: Path, content: str = "") -> Workspace:
    found = Workspace(
        root=folder,
        source=folder / "source",
        home=folder / "home",
        temporary=folder / "tmp",
        scripts=folder / "steps",
    )
    for each in (found.source, found.home):
        each.mkdir(parents=True, exist_ok=True)
    if content:
        (found.source / "x").write_text(content)
    return found


def caching_job(request: JobRequestV1, where: Workspace, *specs: CacheSpec) -> CachingJob:
    return CachingJob(job_id="job", specs=specs, request=request, workspace=where, system="linux")


def attack(rng: random.Random, number: int) -> tuple[JobRequestV1, CacheSpec]:
    """An untrusted request that says all it can, and a cache that it saves."""
    fields: dict[str, Any] = {
        "trusted": rng.choice([False, None]),
        "source": rng.choice([each for each in Source if each is not Source.MANUAL]),
        "change_number": rng.choice([None, 7, number + 1]),
        "head_repo_url": rng.choice([None, FORK]),
        "ref": rng.choice([None, "refs/heads/main", "refs/heads/fix", "refs/tags/v1", "refs/pull/7/head"]),
        "default_branch": rng.choice([None, "main", "fix"]),
        "target_branch": rng.choice([None, "main"]),
        "approves": rng.choice([None, True]),
        "needs_approval": rng.choice([None, True]),
    }
    text = TEXTS[number % len(TEXTS)]
    spec = CacheSpec(
        name=rng.choice(["pip", "pip", "PIP", text]),
        paths=rng.choice([("x",), ("x",), ("x", "~/x")]),
        key=rng.choice(["pip-1", "pip-", f"pip-{text}"])[:60] or "pip-1",
    )
    return job_request(**fields), spec


async def test_nothing_of_a_thousand_untrusted_runs_reaches_a_trusted_one(tmp_path: Path) -> None:
    objects = MemoryObjects(tmp_path)
    caches, rng = JobCaches(store=CacheStore(objects=objects)), random.Random(19)
    poison = workspace(tmp_path / "poison", "poison")
    keys, reached = set[str](), 0
    for number in range(ATTEMPTS):
        request, spec = attack(rng, number)
        job, where = caching_job(request, poison, spec), workspace(tmp_path / f"attempt-{number}")
        sought = await caches.restore(caching_job(request, where, spec), Silence(), asyncio.Event())
        await caches.save(job, sought, Silence(), asyncio.Event())
        keys.add(spec.key)
        reached += (where.source / "x").exists()
    entries = caches.store.entries()
    assert len(entries) > ATTEMPTS / 2
    assert reached > 50, "untrusted runs of one change do find what they saved"
    assert not any(used.entry.place.scope.is_trusted for used in entries)
    for number, fields in enumerate(VICTIMS):
        where = workspace(tmp_path / f"victim-{number}")
        specs = [CacheSpec(name="pip", paths=("x",), key="another", fallbacks=("", "p", "pip-"))]
        if number in {0, len(VICTIMS) - 1}:
            specs += [CacheSpec(name="pip", paths=("x",), key=key) for key in sorted(keys)]
        request = job_request(**{"trusted": True, **fields})
        sought = await caches.restore(caching_job(request, where, *specs), Silence(), asyncio.Event())
        assert len(sought) == len(specs)
        assert not any(each.is_there for each in sought)
        assert list(where.source.iterdir()) == []


async def test_of_a_race_each_side_gets_its_own(tmp_path: Path) -> None:
    store = CacheStore(objects=MemoryObjects(tmp_path))
    spec = CacheSpec(name="pip", paths=("x",), key="pip-1")
    requests = {
        "good": job_request(trusted=True, change_number=7),
        "poison": job_request(trusted=False, change_number=7, head_repo_url=FORK),
    }
    caches = JobCaches(store=store)

    async def save(content: str, number: int) -> None:
        job = caching_job(requests[content], workspace(tmp_path / f"{content}-{number}", content), spec)
        empty = workspace(tmp_path / f"{content}-{number}-before")
        sought = await caches.restore(caching_job(requests[content], empty, spec), Silence(), asyncio.Event())
        await caches.save(job, sought, Silence(), asyncio.Event())

    await asyncio.gather(*(save(content, number) for number in range(10) for content in requests))
    for content, request in requests.items():
        where = workspace(tmp_path / f"{content}-after")
        await caches.restore(caching_job(request, where, spec), Silence(), asyncio.Event())
        assert (where.source / "x").read_text() == content
    assert len(store.entries()) == 2


def test_an_entry_that_was_put_into_another_place_is_not_read(tmp_path: Path) -> None:
    """As if an untrusted entry were copied, renamed or moved within the store."""
    objects = MemoryObjects(tmp_path)
    store = CacheStore(objects=objects)
    request = job_request(trusted=False, change_number=7)
    (untrusted, default) = (cache_place(scope) for scope in cache_scopes(request))
    entry = save_cache(store, untrusted, "pip-1")
    content, at = objects.objects[entry.name]
    for place, key in ((default, "pip-1"), (default, "pip-2"), (untrusted, "pip-2")):
        objects.objects[place.name(key)] = content, at
        assert store.find([place], key, []) is None
    changed = content.replace(b'"is_trusted":false', b'"is_trusted":true')
    assert changed != content
    objects.objects[default.name("pip-1")] = changed, at
    assert store.find([default], "pip-1", ["pip-"]) is None


def test_places_of_hostile_texts_are_all_apart() -> None:
    def place(text: str, *, trusted: bool, paths: tuple[str, ...] = ("x",)) -> CachePlace:
        request = job_request(
            trusted=trusted, change_number=7 if not trusted else None, ref=f"refs/heads/{text}"
        )
        scope = cache_scopes(request)[0]
        return CachePlace(repository="a/b", scope=scope, system="linux", cache=text, paths=paths)

    texts = [each for each in dict.fromkeys(TEXTS) if each and "\0" not in each]
    valid = [each for each in texts if each.isprintable()]
    places = [place(each, trusted=trusted) for each in valid for trusted in (True, False)]
    names = {each.name("pip-1") for each in places}
    assert len(names) == len(places)
    # No file system that folds case, or composes letters, takes two for one.
    assert len({each.casefold() for each in names}) == len(names)
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda each: each.name("pip-1"), places)) == names
