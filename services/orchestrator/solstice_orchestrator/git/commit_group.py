"""Fetch files of many commits of one repository together.

A group takes one fetch of the commits without their files, and one of the few wanted files (a server that cannot leave
files out has sent them already). From repositories that are known to be small, small files come with the commits, and
mostly without a git process of ours (`objects/small_fetches.py`).

A failure that every fetch of the repository would meet is the answer for all commits. After a failure that one commit
may have caused, each commit is fetched singly, so that none fails the others.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git import fetching
from solstice_orchestrator.git.command import CheckoutFailed, Git, GitPolicy
from solstice_orchestrator.git.credentials.credential_rules import CredentialChoice
from solstice_orchestrator.git.objects.commit_checkout import whole_commit
from solstice_orchestrator.git.objects.object_cache import CommitKey
from solstice_orchestrator.git.objects.pack_file import LeftToGit, SmallPack
from solstice_orchestrator.git.objects.planned_commits import PlannedCommits
from solstice_orchestrator.git.objects.small_fetches import fetch_small
from solstice_orchestrator.git.objects.tree_entries import (
    Entries,
    TreeEntry,
    entries_of,
    fetch_blobs,
    fetch_paths,
    read_blobs,
)
from solstice_orchestrator.git.repository import directory_bytes

MAX_ROUNDS: Final = 4
"""How often a group is tried, each time without the unknown commit that was named."""

NO_FILES: Final = "blob:none"
SMALL_FILES: Final = "blob:limit=64k"
MAX_DIRECTORY_BYTES: Final = 64 * 1024
"""The most that the directories of a small repository's commit take, without files."""
MAX_COMMIT_BYTES: Final = 256 * 1024
"""The most that they take with its small files."""
MAX_REPOSITORIES: Final = 4096
LEFT_TO_GIT_SECONDS: Final = 600.0
_ABSENT: Final = re.compile(r"not our ref ([0-9a-f]{40,64})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRequest:
    """Asks for the first of the paths that the request's commit has."""

    request: JobRequestV1
    paths: tuple[str, ...]
    credential: CredentialChoice = None
    """What the request's fetch may use; requests of a group agree."""


class RepositorySizes:
    """Knows the repositories of which commits with small files cost less than two fetches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._small: OrderedDict[str, bool] = OrderedDict()
        self._left_to_git: OrderedDict[str, float] = OrderedDict()
        """Until when git fetches from these, small as they are."""
        self._clock = clock

    def is_small(self, url: str) -> bool:
        return self._small.get(url, False)

    def needs_git(self, url: str) -> bool:
        """Return whether git must fetch: from an unknown or a large repository, and after `leave_to_git`."""
        return not self.is_small(url) or self._left_to_git.get(url, 0.0) > self._clock()

    def leave_to_git(self, url: str) -> None:
        """Let git fetch from this repository for a while: it was needed once more."""
        self._left_to_git.pop(url, None)
        self._left_to_git[url] = self._clock() + LEFT_TO_GIT_SECONDS
        if len(self._left_to_git) > MAX_REPOSITORIES:
            self._left_to_git.popitem(last=False)

    def learn(self, url: str, bytes_of_commit: int) -> None:
        """Learn what a commit took that was fetched with this filter.

        One large commit is enough for the repository to be large.
        """
        most = MAX_COMMIT_BYTES if self._small.get(url) else MAX_DIRECTORY_BYTES
        self._small[url] = self._small.pop(url, True) and bytes_of_commit <= most
        if len(self._small) > MAX_REPOSITORIES:
            self._small.popitem(last=False)


class SingleFetch(Enum):
    """How to fetch a single commit after its group gave no answer for it."""

    AGAIN = auto()
    """As a group of one."""
    WHOLE = auto()
    """By its id, with all its files: the server gives no single files."""
    BY_REF = auto()
    """With its ref: the server does not give it by its id."""


Files: TypeAlias = Mapping[str, bytes]
"""The content of found files, by path."""
FilesOrFailure: TypeAlias = Files | CheckoutFailed


class _NotById(Exception):
    """The server does not give one of the commits by its id."""

    def __init__(self, absent: Iterable[str]) -> None:
        super().__init__()
        self.absent = frozenset(absent)
        """The commits that the server does not know; empty when it named none."""


async def fetch_group(
    lookups: Sequence[FilesRequest],
    *,
    policy: GitPolicy,
    scratch: Path,
    sizes: RepositorySizes | None = None,
    planned: PlannedCommits | None = None,
) -> Sequence[FilesOrFailure | SingleFetch]:
    """Return the answers for requests of one repository, in their order.

    A group of one never gets the answer AGAIN. `scratch` is a directory for temporary ones. `planned` gets the commits
    of small repositories.
    """
    sizes = sizes or RepositorySizes()
    absent: frozenset[str] = frozenset()
    left = list(lookups)
    for _ in range(MAX_ROUNDS):
        try:
            results = iter(await _in_one_fetch(left, policy, scratch, sizes, planned))
            return [next(results) if lookup in left else SingleFetch.BY_REF for lookup in lookups]
        except _NotById as refused:
            named = refused.absent & {lookup.request.commit_sha for lookup in left}
            if len(left) > 1 and not named:
                break
            absent |= named or {left[0].request.commit_sha}
            left = [lookup for lookup in lookups if lookup.request.commit_sha not in absent]
            if not left:
                break
        except CheckoutFailed as error:
            if len(left) > 1:
                break
            return [error if lookup in left else SingleFetch.BY_REF for lookup in lookups]
    return [SingleFetch.AGAIN if lookup in left else SingleFetch.BY_REF for lookup in lookups]


async def fetch_single(
    lookup: FilesRequest, how: SingleFetch, *, policy: GitPolicy, scratch: Path
) -> FilesOrFailure:
    """Return the answer for one commit, fetched singly."""
    if how is SingleFetch.AGAIN:
        (result,) = await fetch_group([lookup], policy=policy, scratch=scratch)
        if not isinstance(result, SingleFetch):
            return result
        how = result
    request = lookup.request
    try:
        async with (
            fetching.bounded(policy.planning_timeout_seconds, request),
            fetching.temporary(scratch) as home,
        ):
            git = await fetching.planning_git(request, home, policy)
            if how is SingleFetch.BY_REF or not await fetching.fetch_by_id(git, request):
                await fetching.fetch_by_ref(git, request)
            entries = await entries_of(git, request.commit_sha, lookup.paths)
            answer = _answer(
                lookup, entries, await read_blobs(git, _blobs([lookup], {request.commit_sha: entries}))
            )
    except CheckoutFailed as error:
        return error
    if isinstance(answer, SingleFetch):
        return CheckoutFailed(
            Reason.CHECKOUT_FAILED,
            f"{request.repo_url} gives the commit without its files also when asked for all",
        )
    return answer


async def _in_one_fetch(
    lookups: Sequence[FilesRequest],
    policy: GitPolicy,
    scratch: Path,
    sizes: RepositorySizes,
    planned: PlannedCommits | None,
) -> Sequence[FilesOrFailure | SingleFetch]:
    """Fetch the commits and their files together.

    Raises _NotById, and CheckoutFailed when one of the commits may have caused the failure of all.
    """
    request = lookups[0].request
    is_small = sizes.is_small(request.repo_url)
    shas = list(dict.fromkeys(lookup.request.commit_sha for lookup in lookups))
    keep = partial(_keep, lookups, policy, planned)
    if not sizes.needs_git(request.repo_url):
        try:
            pack = await fetch_small(request, shas, policy=policy)
            answers = _answers_in(pack, lookups)
        except LeftToGit:
            sizes.leave_to_git(request.repo_url)
        else:
            keep(pack)
            return answers
    async with fetching.temporary(scratch) as home:
        try:
            async with fetching.bounded(policy.planning_timeout_seconds, request) as limit:
                git = await fetching.planning_git(request, home, policy)
                fetched = await fetch_paths(
                    git,
                    [
                        *_partial_fetch(SMALL_FILES if is_small else NO_FILES),
                        *("--depth=1", "--end-of-options", "origin", *shas),
                    ],
                    shas,
                    list(dict.fromkeys(path for lookup in lookups for path in lookup.paths)),
                    partial(_needed, lookups),
                    keep=keep if is_small else None,
                )
                if fetched.stdout is not None:
                    sizes.learn(request.repo_url, directory_bytes(git.git_dir / "objects") // len(shas))
                    return await _answers(git, lookups, *fetched.stdout)
        except CheckoutFailed as error:
            # The host sent nothing in all that time: no commit caused this, and single fetches would only wait again.
            if limit.expired() and directory_bytes(git.git_dir / "objects") == 0:
                return [error] * len(lookups)
            raise
    if fetching.is_not_by_id(fetched):
        raise _NotById(_ABSENT.findall(fetched.stderr))
    failed = fetching.failure(request, fetched)
    if failed.reason is Reason.MACHINE_FAILED or fetching.is_of_repository(fetched):
        return [failed] * len(lookups)
    raise failed


def _keep(
    lookups: Sequence[FilesRequest], policy: GitPolicy, planned: PlannedCommits | None, pack: SmallPack
) -> None:
    if planned is not None:
        for lookup in lookups:
            planned.keep(CommitKey.of(lookup.request, policy), pack)


def _answers_in(pack: SmallPack, lookups: Sequence[FilesRequest]) -> Sequence[FilesOrFailure | SingleFetch]:
    """Return the wanted files of commits that are in the pack; raises LeftToGit."""
    answers = []
    for lookup in lookups:
        found = whole_commit(pack, lookup.request.commit_sha).entries
        entries = {each.path: TreeEntry(mode=each.mode, blob=each.object.id) for each in found}
        answers.append(_answer(lookup, entries, {each.object.id: each.object.content for each in found}))
    return answers


def _partial_fetch(files: str) -> Sequence[str]:
    """Return a fetch with those files alone.

    Only this command treats the repository as partial, so reading commands never fetch by themselves.
    """
    return (
        *("-c", "remote.origin.promisor=true", "-c", f"remote.origin.partialCloneFilter={files}"),
        *fetching.FETCH,
        f"--filter={files}",
    )


async def _answers(
    git: Git, lookups: Sequence[FilesRequest], entries: Mapping[str, Entries], contents: Mapping[str, bytes]
) -> Sequence[FilesOrFailure | SingleFetch]:
    """Return the wanted files of fetched commits; fetch those that are absent here."""
    missing = [blob for blob in _blobs(lookups, entries) if blob not in contents]
    if missing:
        fetched = await fetch_blobs(
            git, [*_partial_fetch(NO_FILES), "--end-of-options", "origin", *missing], missing
        )
        if fetched.stdout is not None:
            contents = {**contents, **fetched.stdout}
        elif not fetching.is_not_by_id(fetched):
            raise fetching.failure(lookups[0].request, fetched)
    return [_answer(lookup, entries[lookup.request.commit_sha], contents) for lookup in lookups]


def _first(lookup: FilesRequest, entries: Entries) -> tuple[str, TreeEntry] | None:
    return next(((path, entries[path]) for path in lookup.paths if path in entries), None)


def _blobs(lookups: Sequence[FilesRequest], entries: Mapping[str, Entries]) -> Sequence[str]:
    """Return the ids of all needed blobs."""
    firsts = (_first(lookup, entries[lookup.request.commit_sha]) for lookup in lookups)
    return list(dict.fromkeys(first[1].blob for first in firsts if first and first[1].is_plain_file))


def _needed(lookups: Sequence[FilesRequest], sha: str, entries: Entries) -> Sequence[str]:
    """Return the ids of the needed blobs of one commit."""
    return _blobs([lookup for lookup in lookups if lookup.request.commit_sha == sha], {sha: entries})


def _answer(
    lookup: FilesRequest, entries: Entries, contents: Mapping[str, bytes]
) -> FilesOrFailure | SingleFetch:
    first = _first(lookup, entries)
    if first is None:
        return {}
    path, entry = first
    if not entry.is_plain_file:
        return CheckoutFailed(
            Reason.INVALID_WORKFLOW, f"{path} is {entry.kind} in this commit; it must be a plain file"
        )
    return {path: contents[entry.blob]} if entry.blob in contents else SingleFetch.WHOLE
