"""Merkle trees over bodies, and the path from a body to its tree's root. Pure.

The tree is that of RFC 9162, section 2.1, with SHA-256: a byte 0 stands before a body, a byte 1 before two digests, so
that no body counts as a node. A digest without a neighbour moves up as it is; it is never doubled.

A path is text: for each level from the body up, 44 characters of base64url are a byte that is 0 where the neighbour
stands on the left and 1 where it stands on the right, and the neighbour's digest. Thirty-three bytes need no padding,
so a step has no free bit, and the end of a path is the path of the node above.
"""

import re
from base64 import urlsafe_b64encode
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

MAX_LEVELS: Final = 7
"""The steps of the longest path."""
MAX_BODIES: Final = 2**MAX_LEVELS
STEP_CHARACTERS: Final = 44
_STEP_BYTES: Final = 33
MAX_PATH_CHARACTERS: Final = MAX_LEVELS * STEP_CHARACTERS
_PATH: Final = re.compile(rf"([A-Za-z0-9_-]{{{STEP_CHARACTERS}}}){{1,{MAX_LEVELS}}}")
_OF_BODY: Final = b"\x00"
_OF_NODE: Final = b"\x01"
_LEFT: Final = 0
_RIGHT: Final = 1
_PLACES: Final = (b"\x00", b"\x01")
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def grow_tree(bodies: Sequence[bytes], above: str = "") -> tuple[bytes, list[str]]:
    """Return the root of the tree over these bodies, and the path of each.

    `above` is the path from that root, where it is a node of a larger tree.
    """
    levels = [[sha256(_OF_BODY + body).digest() for body in bodies]]
    while len(below := levels[-1]) > 1:
        # As `_parent`, without its call.
        level = [
            sha256(_OF_NODE + left + right).digest()
            for left, right in zip(below[::2], below[1::2], strict=False)
        ]
        levels.append(level + below[2 * len(level) :])
    paths = [above]
    on_left, on_right = _PLACES
    for level in reversed(levels[:-1]):
        pairs = zip(level[::2], level[1::2], strict=False)
        neighbours = b"".join([on_left + left + on_right + right for left, right in pairs])
        # Together, since one call takes as long as forty of its bytes.
        steps = urlsafe_b64encode(neighbours).decode()
        # The step of the left one names the right one. A last node without a neighbour is the one above.
        paths = [
            steps[start : start + STEP_CHARACTERS] + path
            for at, path in zip(range(0, len(steps), 2 * STEP_CHARACTERS), paths, strict=False)
            for start in (at + STEP_CHARACTERS, at)
        ] + paths[len(level) // 2 :]
    return levels[-1][0], paths


def is_path(text: str) -> bool:
    """Whether the text has the form of a path with at least one step."""
    return _PATH.fullmatch(text) is not None


class ProvenTree:
    """The nodes of one tree that are known to lead to its root.

    `is_root` says whether a digest is the root that was signed; it is asked until it says so once. After that, a path
    is followed only up to the first node that an earlier path proved. A path proves the nodes on it and their
    neighbours, so each node of the tree is computed once. Memory is bounded by the nodes of one tree, because nothing
    is remembered of a path that leads elsewhere.
    """

    def __init__(self, is_root: Callable[[bytes], bool]) -> None:
        self._is_root = is_root
        self._digests: dict[str, bytes] = {}
        """The digest of each proven node, by its path."""

    def proves(self, body: bytes, path: str) -> bool:
        """Whether the path leads from this body to the root."""
        if not path or len(path) > MAX_PATH_CHARACTERS:
            return False
        return self._leads_to_root(sha256(_OF_BODY + body).digest(), path)

    def proves_each(self, bodies: list[bytes], paths: list[str]) -> list[bool]:
        """Return what `proves` says of each body and its path.

        Bodies that are neighbours in the tree and here are computed together, which takes half the time: their paths
        are written, not read.
        """
        proven: list[bool] = []
        while (start := len(proven)) < len(bodies):
            levels = _levels_of_subtree(paths, start)
            end = start + 2**levels
            if levels and self._proves_subtree(bodies[start:end], paths[start:end], levels):
                proven += [True] * (end - start)
            else:
                # One by one, and no smaller subtree is tried: a wrong path costs others twice their time at most.
                proven += map(self.proves, bodies[start:end], paths[start:end])
        return proven

    def _proves_subtree(self, bodies: list[bytes], paths: list[str], levels: int) -> bool:
        """Whether these are all bodies under one proven node, each with its path."""
        if len(paths[0]) > MAX_PATH_CHARACTERS:
            return False
        above = paths[0][levels * STEP_CHARACTERS :]
        digest, expected = grow_tree(bodies, above)
        return expected == paths and self._leads_to_root(digest, above)

    def _leads_to_root(self, digest: bytes, path: str) -> bool:
        if len(path) % STEP_CHARACTERS:
            return False
        known = self._digests.get(path)
        passed: dict[str, bytes] = {}
        while path and known is None:
            step = _read_step(path[:STEP_CHARACTERS])
            if step is None:
                return False
            neighbour, path = step[1:], path[STEP_CHARACTERS:]
            if step[0] == _RIGHT:
                passed[_step(_LEFT, digest) + path] = neighbour
                digest = _parent(digest, neighbour)
            else:
                passed[_step(_RIGHT, digest) + path] = neighbour
                digest = _parent(neighbour, digest)
            passed[path] = digest
            known = self._digests.get(path)
        if known is None:
            if not self._is_root(digest):
                return False
            passed[path] = digest
        elif digest != known:
            return False
        self._digests.update(passed)
        return True


def _levels_of_subtree(paths: Sequence[str], start: int) -> int:
    """Return how many levels the largest node has whose bodies begin here.

    That is a guess from the paths of the first and the last of them.
    """
    levels = 0
    while (last := start + 2 ** (levels + 1) - 1) < len(paths):
        above = (levels + 1) * STEP_CHARACTERS
        if paths[last][above:] != paths[start][above:]:
            break
        levels += 1
    return levels


def _read_step(text: str) -> bytes | None:
    """Return a step's bytes: the place and the neighbour's digest. None for what is none."""
    if "+" in text or "/" in text:
        return None
    try:
        step = a2b_base64(text.replace("-", "+").replace("_", "/"))
    except ValueError:
        return None
    # What is no letter of base64 was skipped.
    return step if len(step) == _STEP_BYTES and step[0] <= _RIGHT else None


def _parent(left: bytes, right: bytes) -> bytes:
    return sha256(_OF_NODE + left + right).digest()


def _step(place: int, digest: bytes) -> str:
    """How a path names a neighbour."""
    # As `urlsafe_b64encode`, without its two calls.
    return b2a_base64(_PLACES[place] + digest, newline=False).translate(_URL_SAFE).decode()
