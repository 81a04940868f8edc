"""What a push brought, as its payload tells: the head commit's message, and the paths that changed. Pure.

Read only when a rule or a mark asks for it: the list of commits is most of a payload.
"""

from typing import Final

from solstice_common.messages import Source
from solstice_forge.forges.events import Malformed
from solstice_forge.forges.payloads import Payload, is_zero, read

MOST_COMMITS: Final = 2048
"""Of a push that GitHub tells of (docs.github.com/webhooks/webhook-events-and-payloads#push); it gives no total."""


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
    """Gitea, Forgejo: how many there were, of which `commits` holds the newest."""
    total_commits_count: int | None = None
    """GitLab: the same."""


def head_message(commit_sha: str, payload: bytes) -> str | None:
    """The message of the commit; None when the payload does not hold it."""
    pushed = read(PushContents, payload)
    if isinstance(pushed, Malformed):
        return None
    commits = (*(pushed.commits or ()), *([pushed.head_commit] if pushed.head_commit else ()))
    return next((commit.message for commit in commits if commit.id == commit_sha), None)


def changed_paths(source: Source, payload: bytes) -> frozenset[str] | None:
    """Every path that the pushed commits touched; None when the payload cannot tell.

    It cannot for a new branch and for a forced push (what is listed is not the difference), for more commits than the
    forge lists (GitHub 2048, GitLab 20, Gitea and Forgejo as configured, 15 by default), and where it names no files.
    """
    pushed = read(PushContents, payload)
    if isinstance(pushed, Malformed) or is_zero(pushed.before) or pushed.forced or not pushed.commits:
        return None
    listed = len(pushed.commits)
    total = pushed.total_commits if pushed.total_commits_count is None else pushed.total_commits_count
    told = listed < MOST_COMMITS if source is Source.GITHUB else total is not None and total <= listed
    if not told or not all(map(_names_files, pushed.commits)):
        return None
    return frozenset(
        path
        for commit in pushed.commits
        for paths in (commit.added, commit.modified, commit.removed)
        for path in paths or ()
    )


def _names_files(commit: PushedCommit) -> bool:
    """GitLab and old Gitea leave the lists out, or null, where they did not look."""
    return not (commit.added is None and commit.modified is None and commit.removed is None)
