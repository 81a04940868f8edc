"""The repository that recorded runs build: the same commits wherever it is made."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.repositories import GIT_ENVIRONMENT
from tests.servers.git_servers import git_backend, http_server

WORKFLOW: Final = 'job "planned" {\n    step "work" run="echo planned"\n}\n'
COMMIT: Final = "cfe8839c1aaf319bcf4150a06fec31330ff91718"
"""The commit of main."""
DATE: Final = "2026-11-26T20:00:00Z"


def make_lighthouse(root: Path) -> Path:
    """Make the bare repository `harbour/lighthouse.git` below `root`."""
    root.mkdir()
    work, bare = root / "work", root / "harbour" / "lighthouse.git"
    environment = {**GIT_ENVIRONMENT, "GIT_AUTHOR_DATE": DATE, "GIT_COMMITTER_DATE": DATE}

    def git(*arguments: str | os.PathLike[str]) -> str:
        done = subprocess.run(
            ["git", *arguments], env=environment, cwd=root, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "--quiet", "--initial-branch=main", work)
    (work / ".solstice").mkdir()
    (work / ".solstice" / "workflow.kdl").write_text(WORKFLOW, "utf-8")
    git("-C", work, "add", "--all")
    git("-C", work, "commit", "--quiet", "--message", "Build")
    assert git("-C", work, "rev-parse", "HEAD") == COMMIT
    git("clone", "--quiet", "--bare", work, bare)
    return bare


@contextmanager
def lighthouse_proxy(root: Path) -> Iterator[str]:
    """The URL of a proxy that answers for every host from `root`.

    The recorded runs name a host that does not exist.
    """
    backend = git_backend(root)

    def do_get(self: Any) -> None:
        parts = urlsplit(self.path)
        self.path = f"{parts.path}?{parts.query}"
        backend.do_GET(self)

    handler = type("Proxied", (backend,), {"do_GET": do_get})
    with http_server(handler) as port:
        yield f"http://127.0.0.1:{port}"
