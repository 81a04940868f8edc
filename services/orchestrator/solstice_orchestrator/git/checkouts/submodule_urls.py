"""Decide from where a submodule is fetched: only from the host of its repository. Pure."""

from typing import Final
from urllib.parse import SplitResult, urlsplit

from solstice_common.values.repo_urls import canonical, from_scp, without_user

_SCHEMES: Final = frozenset({"https", "http", "ssh"})
"""The protocols of repositories that have submodules here."""


def submodule_url(repo_url: str, written: str) -> str:
    """Return the URL of a submodule that `.gitmodules` of the repository writes so.

    It has the protocol, user, host and port of the repository. ValueError says why it is not fetched.
    """
    parent = urlsplit(repo_url)
    if parent.scheme not in _SCHEMES:
        raise ValueError(f"is of a repository with {parent.scheme}://, whose submodules are not fetched")
    path = _joined(parent.path, written) if _is_relative(written) else _path_on(parent, written)
    return canonical(f"{parent.scheme}://{parent.netloc}{path}")


def _is_relative(written: str) -> bool:
    return written.split("/", 1)[0] in {".", ".."}


def _joined(base: str, relative: str) -> str:
    """Return the path that is meant relative to the repository (git-submodule(1), "add")."""
    parts = [part for part in base.split("/") if part]
    for part in relative.split("/"):
        if part == "..":
            if not parts:
                raise ValueError("leads above the paths of its host")
            parts.pop()
        elif part not in {"", "."}:
            parts.append(part)
    return "/" + "/".join(parts)


def _path_on(parent: SplitResult, written: str) -> str:
    """Return the path of a URL that names the parent's host, by any protocol."""
    own = urlsplit(canonical(without_user(from_scp(written) or written)))
    is_other_port = own.scheme == parent.scheme and own.port != parent.port
    if own.hostname != parent.hostname or is_other_port:
        own_host = own.netloc.rpartition("@")[2]
        raise ValueError(
            f"is of {own_host or 'this machine'}; submodules come from the repository's own host alone"
        )
    return own.path
