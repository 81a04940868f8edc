"""Reads a push's payload for the head commit's message and the changed paths. Pure.

It is called only when a rule or a mark needs them: the list of commits is most of a payload.
"""

from typing import Final

from solstice_common.messages import Source
from solstice_forge.forges.events import Malformed
from solstice_forge.forges.payloads import Payload, is_zero, read

MOST_COMMITS: Final = 2048
"""The most commits that GitHub lists (docs.github.com/webhooks/webhook-events-and-payloads#push); it gives no total."""


class PushedCommit(Payload, frozen=True, kw_only=True):
    id: str | None = None
    message: str | None = None
    added: list[str] | None = None
    modified: list[str] | None = None
    removed: list[str] | None = None


class PushContents(Payload, frozen=True, kw_only=True):
    before: str = ""
    forced: bool = False
    commits: list[PushedCommit] | None = None
    head_commit: PushedCommit | None = None
    total_commits: int | None = None
    """Gitea, Forgejo: how many commits there were; `commits` holds the newest of them."""
    total_commits_count: int | None = None
    """GitLab: how many commits there were."""


def head_message(commit_sha: str, payload: bytes) -> str | None:
    """Return the message of the commit; None when the payload does not hold it."""
    pushed = read(PushContents, payload)
    if isinstance(pushed, Malformed):
        return None
    commits = (*(pushed.commits or ()), *([pushed.head_commit] if pushed.head_commit else ()))
    return next((commit.message for commit in commits if commit.id == commit_sha), None)


def changed_paths(source: Source, payload: bytes) -> frozenset[str] | None:
    """Return every path that the pushed commits touched; None when the payload cannot say.

    It cannot for a new branch and for a forced push (the list is not the difference), for more commits than the forge
    lists (GitHub 2048, GitLab 20, Gitea and Forgejo as configured, 15 by default), and where it names no files.
    """
    pushed = read(PushContents, payload)
    if isinstance(pushed, Malformed) or is_zero(pushed.before) or pushed.forced or not pushed.commits:
        return None
    listed = len(pushed.commits)
    total = pushed.total_commits if pushed.total_commits_count is None else pushed.total_commits_count
    lists_all = listed < MOST_COMMITS if source is Source.GITHUB else total is not None and total <= listed
    if not lists_all or not all(map(_names_files, pushed.commits)):
        return None
    return frozenset(
        path
        for commit in pushed.commits
        for paths in (commit.added, commit.modified, commit.removed)
        for path in paths or ()
    )


def _names_files(commit: PushedCommit) -> bool:
    """Whether the commit lists its files.

    GitLab and old Gitea may omit the lists or send null.
    """
    return not (commit.added is None and commit.modified is None and commit.removed is None)
