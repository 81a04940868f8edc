"""Composes the checkout of a fetched small commit as git would write it, without git. Pure.

Only what git writes without a second thought is composed: plain names, files, symbolic links and directories, all of
them in the pack. All else is left to git: submodules, attributes, names that mean something to some file system. The job
finds no reflog; git begins one with the job's first commit.
"""

import hashlib
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from solstice_orchestrator.git.objects.checkout_copy import (
    INDEX_HEADER,
    INDEX_ID_OFFSET,
    MAX_CHECKOUT_BYTES,
    MAX_ENTRIES,
    CheckoutCopy,
    next_entry_at,
)
from solstice_orchestrator.git.objects.pack_file import (
    DIRECTORY,
    GitObject,
    LeftToGit,
    PackedObject,
    SmallPack,
    tree_entries,
)
from solstice_orchestrator.git.objects.pack_writing import written_pack
from solstice_orchestrator.git.repository import object_format, repository_config
from solstice_orchestrator.processes.small_copies import CheckoutFile, CheckoutFiles

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.+@%,=#()\[\]{}&! -]{1,200}(?<![. ])")
"""Names that are the same everywhere; those that end with a dot or a space are not."""
_HARMLESS: Final = frozenset({".gitignore", ".gitkeep", ".github", ".gitlab", ".gitlab-ci.yml", ".gitea"})
"""Of the names that begin with `.git`. Others are git's own, or look like it to a file system."""
_MAX_PATH_BYTES: Final = 1000
_MAX_LINK_BYTES: Final = 1000
_FILE: Final = "100644"
_LINK: Final = "120000"
_MODES: Final = {
    _FILE: stat.S_IFREG | 0o666,
    "100755": stat.S_IFREG | 0o777,
    _LINK: stat.S_IFLNK | 0o777,
    DIRECTORY: stat.S_IFDIR | 0o777,
}
"""The modes of entries, and those of files before the umask."""
_LONGEST_IN_FLAGS: Final = 0xFFF
_PERSON: Final = rb"[^<>\n\0]+ <[^<>\n\0]*> [1-9]\d{0,10} [+-]\d{4}\n"
_COMMIT: Final = re.compile(
    rb"tree [0-9a-f]+\n(?:parent [0-9a-f]+\n)*author %s" % _PERSON + rb"committer %s[^\0]*\Z" % _PERSON
)
"""A commit in which git's checks find nothing (fsck.c)."""


class CommitEntry(NamedTuple):
    """A file, link or directory of a commit."""

    path: str
    mode: str
    object: GitObject


@dataclass(frozen=True, slots=True)
class WholeCommit:
    """A commit that is here whole, with all that is in it."""

    commit: GitObject
    root: GitObject
    entries: Sequence[CommitEntry]
    """Each directory before what is in it."""


def whole_commit(pack: SmallPack, commit_sha: str) -> WholeCommit:
    """Return a commit whose objects are all in the pack; raises LeftToGit.

    It has no more than a small checkout has, and nothing that git's checks of fetched objects could refuse.
    """
    commit = pack.object(commit_sha, "commit")
    if _COMMIT.match(commit.content) is None:
        raise LeftToGit
    root = pack.object(pack.tree_of(commit_sha), "tree")
    return WholeCommit(commit, root, tuple(_entries(pack, root)))


def _entries(pack: SmallPack, root: GitObject) -> Iterator[CommitEntry]:
    todo, left, size_bytes = [("", root)], MAX_ENTRIES, 0
    while todo:
        above, tree = todo.pop()
        names, last = set[str](), b""
        for mode, raw_name, object_id in tree_entries(tree):
            name, is_directory = raw_name.decode("ascii", "replace"), mode == DIRECTORY
            # Git's order, in which a directory's name ends with a slash.
            before, last = last, raw_name + b"/" * is_directory
            if mode not in _MODES or not _is_plain(above, name) or name.lower() in names or last <= before:
                raise LeftToGit
            found = pack.object(object_id, "tree" if is_directory else "blob")
            names.add(name.lower())
            size_bytes += found.size
            left -= 1
            if left < 0 or size_bytes > MAX_CHECKOUT_BYTES:
                raise LeftToGit
            if mode == _LINK and not _is_plain_target(found.content):
                raise LeftToGit
            yield CommitEntry(above + name, mode, found)
            if is_directory:
                todo.append((f"{above}{name}/", found))
        if not names:
            raise LeftToGit


def _is_plain(above: str, name: str) -> bool:
    if _PLAIN_NAME.fullmatch(name) is None or len(above) + len(name) > _MAX_PATH_BYTES:
        return False
    return not name.lower().startswith(".git") or name in _HARMLESS


def _is_plain_target(content: bytes) -> bool:
    return 0 < len(content) <= _MAX_LINK_BYTES and b"\0" not in content


def composed_checkout(pack: SmallPack, repo_url: str, commit_sha: str) -> CheckoutCopy:
    """Return the checkout of a commit whose objects are all in the pack; raises LeftToGit."""
    digest, found = object_format(commit_sha), whole_commit(pack, commit_sha)
    index, index_entries = _index([each for each in found.entries if each.mode != DIRECTORY], digest)
    files = (
        *_repository(found, repo_url, digest),
        *(
            CheckoutFile(
                each.path.encode(), _MODES[each.mode], b"" if each.mode == DIRECTORY else each.object.content
            )
            for each in found.entries
        ),
    )
    copy = CheckoutCopy.of(CheckoutFiles(files, index, _MODES[_FILE], index_entries, digest))
    if copy.size_bytes > MAX_CHECKOUT_BYTES or len(files) > MAX_ENTRIES:
        raise LeftToGit
    return copy


def _repository(found: WholeCommit, repo_url: str, digest: str) -> Sequence[CheckoutFile]:
    """Return the files of the job's repository, without the index."""
    commit, root = found.commit, found.root
    objects = {commit.id: PackedObject("commit", commit.content), root.id: PackedObject("tree", root.content)}
    for each in found.entries:
        kind = "tree" if each.mode == DIRECTORY else "blob"
        objects[each.object.id] = PackedObject(kind, each.object.content)
    name, pack, index = written_pack(objects, digest)
    config = repository_config(url=repo_url, object_format=digest, bare=False)
    directory, file, read_only = _MODES[DIRECTORY], _MODES[_FILE], stat.S_IFREG | 0o444
    head = f"{commit.id}\n".encode()
    return (
        CheckoutFile(b".git", directory),
        CheckoutFile(b".git/refs", directory),
        CheckoutFile(b".git/objects", directory),
        CheckoutFile(b".git/objects/pack", directory),
        CheckoutFile(f".git/objects/pack/pack-{name}.pack".encode(), read_only, pack),
        CheckoutFile(f".git/objects/pack/pack-{name}.idx".encode(), read_only, index),
        CheckoutFile(b".git/config", file, config.encode()),
        CheckoutFile(b".git/HEAD", file, head),
        CheckoutFile(b".git/shallow", file, head),
    )


def _index(entries: Sequence[CommitEntry], digest: str) -> tuple[bytes, Sequence[tuple[int, bytes]]]:
    """Return an index without times and inodes, and where in it each file stands."""
    index = bytearray(INDEX_HEADER.pack(b"DIRC", 2, len(entries)))
    index_entries = list[tuple[int, bytes]]()
    for entry in sorted(entries, key=lambda each: each.path.encode()):
        at, path = len(index), entry.path.encode()
        index_entries.append((at, path))
        index += bytes(INDEX_ID_OFFSET) + bytes.fromhex(entry.object.id)
        struct.pack_into(">I", index, at + 24, int(entry.mode, 8))
        index += struct.pack(">H", min(len(path), _LONGEST_IN_FLAGS)) + path
        index += bytes(next_entry_at(at, len(index)) - len(index))
    return bytes(index) + bytes(hashlib.new(digest).digest_size), index_entries
