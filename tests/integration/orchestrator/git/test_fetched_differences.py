"""A new commit of a large repository is fetched into a copy of another one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.checkout_spec import PLAIN_CHECKOUT, CheckoutSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.credentials.credential_rules import PROVEN_SECONDS, CredentialRule, TokenAccess
from solstice_orchestrator.git.objects.object_cache import MAX_PACKS, CommitKey, ObjectCache
from tests.builders import job_request
from tests.repositories import GIT_ENVIRONMENT, Repository

POLICY = GitPolicy(protocols=("file",))
LARGE_BYTES = 400_000
SMALL_BYTES = 10_000


class Checkouts:
    """Checks out commits of one large repository with one cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Repository(folder / "harbour")
        self.directory = folder / "work" / "git" / "objects"
        self.cache = ObjectCache(self.directory, 1024**3)
        self._count = 0

    def commit(self, number: int) -> JobRequestV1:
        """Commit one more small file; the first commit has a large one, too."""
        files: dict[str, str | bytes] = {f"below/{number}.txt": f"{number}\n"}
        if number == 0:
            files["large.bin"] = os.urandom(LARGE_BYTES)
        sha = self.repository.commit(files)
        return job_request(repo_url=self.repository.url, commit_sha=sha, trusted=True)

    async def check_out(
        self, request: JobRequestV1, spec: CheckoutSpec = PLAIN_CHECKOUT, *, with_cache: bool = True
    ) -> Path:
        self._count += 1
        place = self.folder / f"place-{self._count}"
        objects = self.cache if with_cache else None
        await check_out(
            request, place, policy=POLICY, scratch=self.folder / "work", objects=objects, spec=spec
        )
        return place

    def cached_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.directory.iterdir())


@pytest.fixture
def checkouts(tmp_path: Path) -> Checkouts:
    return Checkouts(tmp_path)


def git(place: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=place, env=GIT_ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout


def pack_sizes(place: Path) -> list[int]:
    return sorted(path.stat().st_size for path in (place / ".git/objects/pack").glob("*.pack"))


@pytest.mark.parametrize("depth", [1, 2, 0])
async def test_only_what_differs_is_fetched(checkouts: Checkouts, depth: int) -> None:
    spec = CheckoutSpec(depth=depth)
    requests = [checkouts.commit(number) for number in range(3)]
    await checkouts.check_out(requests[0], spec)
    for number, request in enumerate(requests[1:], start=1):
        place = await checkouts.check_out(request, spec)
        *small, large = pack_sizes(place)
        assert len(small) == number
        assert sum(small) < SMALL_BYTES < LARGE_BYTES < large
        # In all other ways it is as if it had been fetched alone.
        alone = await checkouts.check_out(request, spec, with_cache=False)
        for command in (
            ["log", "--format=%H"],
            ["status", "--porcelain"],
            ["for-each-ref"],
            ["ls-files", "--stage"],
        ):
            assert git(place, *command) == git(alone, *command)
        assert git(place, "fsck", "--strict", "--no-dangling") == ""
        assert not (place / ".git/refs/solstice").exists()
    # The commits share the large pack: the disk has it once.
    assert checkouts.cached_bytes() < 2 * LARGE_BYTES


async def test_a_commit_stays_when_the_one_that_it_was_built_on_is_dropped(checkouts: Checkouts) -> None:
    first, second = checkouts.commit(0), checkouts.commit(1)
    await checkouts.check_out(first)
    (shallow,) = (path for path in checkouts.directory.iterdir() if path.stat().st_size < 100)
    await checkouts.check_out(second)
    shutil.rmtree(checkouts.repository.path)
    # Something of the first commit alone is changed.
    shallow.write_text("")
    with pytest.raises(CheckoutFailed):
        await checkouts.check_out(first)
    assert not shallow.exists()
    assert (await checkouts.check_out(second) / "large.bin").stat().st_size == LARGE_BYTES


async def test_a_base_stays_while_what_is_built_on_it_is_stored(checkouts: Checkouts) -> None:
    first, second = checkouts.commit(0), checkouts.commit(1)
    checkouts.cache = ObjectCache(checkouts.directory, LARGE_BYTES + 5_000)
    other = Repository(checkouts.folder / "other")
    sha = other.commit({"a.txt": "ahoy"})
    await checkouts.check_out(first)
    await checkouts.check_out(job_request(repo_url=other.url, commit_sha=sha, trusted=True))
    assert len(pack_sizes(await checkouts.check_out(second))) == 2
    assert checkouts.cached_bytes() <= LARGE_BYTES + 5_000
    shutil.rmtree(checkouts.repository.path)
    assert (await checkouts.check_out(second) / "large.bin").stat().st_size == LARGE_BYTES


async def test_other_trust_or_another_credential_gets_nothing_of_it(checkouts: Checkouts) -> None:
    first, second = checkouts.commit(0), checkouts.commit(1)
    await checkouts.check_out(first)
    for stranger in (False, None):
        place = await checkouts.check_out(second.model_copy(update={"trusted": stranger}))
        assert len(pack_sizes(place)) == 1
        with pytest.raises(subprocess.CalledProcessError):
            git(place, "cat-file", "-e", first.commit_sha)
        checkouts.cache = ObjectCache(checkouts.directory, 1024**3)
        await checkouts.check_out(first)
    key, token = (
        CommitKey.of(second, POLICY),
        CredentialRule(repositories=("*",), access=TokenAccess(token="env:T")),
    )
    base = CommitKey.of(first, POLICY)
    assert key.can_build_on(base)
    for other in (
        base._replace(credential=token),
        base._replace(trusted=False),
        base._replace(repo_url=base.repo_url + "x"),
        base._replace(spec=CheckoutSpec(depth=2)),
    ):
        assert not key.can_build_on(other)
    tags = CheckoutSpec(tags=True)
    assert not key._replace(spec=tags).can_build_on(base._replace(spec=tags))


async def test_a_base_that_was_changed_on_disk_is_not_built_on(checkouts: Checkouts) -> None:
    first, second = checkouts.commit(0), checkouts.commit(1)
    await checkouts.check_out(first)
    for path in checkouts.directory.iterdir():
        path.write_bytes(path.read_bytes()[::-1])
    place = await checkouts.check_out(second)
    assert len(pack_sizes(place)) == 1
    assert git(place, "fsck", "--strict") == ""


async def test_after_many_commits_one_is_fetched_as_a_whole(checkouts: Checkouts) -> None:
    counts = [
        len(pack_sizes(await checkouts.check_out(checkouts.commit(number))))
        for number in range(MAX_PACKS + 2)
    ]
    assert counts == [*range(1, MAX_PACKS + 2), 1]


async def test_a_fetch_that_fails_on_what_is_here_is_tried_without_it(checkouts: Checkouts) -> None:
    first, second = checkouts.commit(0), checkouts.commit(1)
    source = await checkouts.check_out(first) / ".git"
    place = checkouts.folder / "x" / ".git"
    (place / "objects").mkdir(parents=True)
    found: list[tuple[list[str], bool]] = []

    async def fetch() -> None:
        here = sorted(path.suffix for path in (place / "objects").rglob("*") if path.is_file())
        found.append((here, (place / "shallow").exists()))
        if here:
            (place / "objects" / "pack" / "tmp_pack_1").write_bytes(b"half")
            raise CheckoutFailed(Reason.CHECKOUT_FAILED, "confused")
        shutil.copytree(source / "objects", place / "objects", dirs_exist_ok=True)

    await checkouts.cache.provide(CommitKey.of(second, POLICY), place, fetch)
    assert found == [([".idx", ".pack"], True), ([], False)]
    assert not (place / "refs" / "solstice").exists()


@pytest.mark.parametrize(
    ("reason", "host_away"),
    [(Reason.CHECKOUT_FAILED, True), (Reason.COMMIT_NOT_FOUND, False), (Reason.MACHINE_FAILED, False)],
    ids=["host away", "not found", "machine"],
)
async def test_other_failures_are_not_tried_again(
    checkouts: Checkouts, reason: Reason, host_away: bool
) -> None:
    first, second = checkouts.commit(0), checkouts.commit(1)
    await checkouts.check_out(first)
    place, fetches = checkouts.folder / "x" / ".git", list[int]()
    (place / "objects").mkdir(parents=True)

    async def fetch() -> None:
        fetches.append(1)
        raise CheckoutFailed(reason, "no", host_away=host_away)

    key = CommitKey.of(second, POLICY)
    with pytest.raises(CheckoutFailed):
        await checkouts.cache.provide(key, place, fetch)
    assert fetches == [1]
    assert checkouts.cache.fetched_into(key, place).bytes_before == 0


async def test_while_it_is_fetched_what_was_here_before_is_no_answer_of_the_host(
    checkouts: Checkouts,
) -> None:
    first, second = checkouts.commit(0), checkouts.commit(1)
    await checkouts.check_out(first)
    place, before = checkouts.folder / "x" / ".git", list[int]()
    (place / "objects").mkdir(parents=True)
    key = CommitKey.of(second, POLICY)

    async def fetch() -> None:
        before.append(checkouts.cache.fetched_into(key, checkouts.folder).bytes_before)

    await checkouts.cache.provide(key, place, fetch)
    assert before[0] > LARGE_BYTES


@pytest.mark.parametrize(("depth", "packs"), [(1, 2), (0, 1)])
async def test_what_was_proven_long_ago_is_no_base_without_a_question_to_the_host(
    checkouts: Checkouts, depth: int, packs: int
) -> None:
    """git asks no host for a commit that is in the history of the base."""
    now, spec = 0.0, CheckoutSpec(depth=depth)
    first, second = checkouts.commit(0), checkouts.commit(1)
    checkouts.cache = ObjectCache(checkouts.directory, 1024**3, lambda: now)
    await checkouts.check_out(first, spec)
    now = PROVEN_SECONDS + 1
    assert len(pack_sizes(await checkouts.check_out(second, spec))) == packs


async def test_an_older_commit_is_proven_no_longer_than_the_one_in_whose_history_it_was(
    checkouts: Checkouts,
) -> None:
    now, spec = 0.0, CheckoutSpec(depth=0)
    older, newer = checkouts.commit(0), checkouts.commit(1)
    checkouts.cache = ObjectCache(checkouts.directory, 1024**3, lambda: now)
    await checkouts.check_out(newer, spec)
    now = PROVEN_SECONDS - 1
    await checkouts.check_out(older, spec)
    now = PROVEN_SECONDS + 1
    shutil.rmtree(checkouts.repository.path)
    with pytest.raises(CheckoutFailed):
        await checkouts.check_out(older, spec)
