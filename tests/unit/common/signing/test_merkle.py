"""Merkle trees against published ones, and paths that attackers would send."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from random import Random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.signing import merkle
from solstice_common.signing.merkle import (
    MAX_BODIES,
    MAX_LEVELS,
    STEP_CHARACTERS,
    ProvenTree,
    grow_tree,
    is_path,
)

many_bodies = st.lists(st.binary(max_size=40), min_size=2, max_size=MAX_BODIES)


def tree_of(root: bytes) -> ProvenTree:
    return ProvenTree(lambda digest: digest == root)


def proven(root: bytes, body: bytes, path: str) -> bool:
    """What a tree says that knows nothing yet, alone and of a batch."""
    alone = tree_of(root).proves(body, path)
    assert tree_of(root).proves_each([body] * 2, [path] * 2) == [alone] * 2
    return alone


def steps(path: str) -> list[str]:
    return [path[at : at + STEP_CHARACTERS] for at in range(0, len(path), STEP_CHARACTERS)]


def step(neighbour: bytes, *, stands_right: int) -> str:
    return urlsafe_b64encode(bytes((stands_right,)) + neighbour).decode()


def leaf(body: bytes) -> bytes:
    return sha256(b"\x00" + body).digest()


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def defined_root(bodies: list[bytes]) -> bytes:
    """The definition of RFC 9162, section 2.1.1, word by word."""
    if len(bodies) == 1:
        return leaf(bodies[0])
    split = 1
    while 2 * split < len(bodies):
        split *= 2
    return node(defined_root(bodies[:split]), defined_root(bodies[split:]))


PUBLISHED_BODIES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
PUBLISHED_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
"""Of trees over the first bodies, from the reference tests of Certificate Transparency."""


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_are_those_of_certificate_transparency(size: int) -> None:
    assert grow_tree(PUBLISHED_BODIES[:size])[0].hex() == PUBLISHED_ROOTS[size - 1]


@given(many_bodies)
def test_each_path_leads_to_the_root_that_the_rfc_defines(bodies: list[bytes]) -> None:
    root, paths = grow_tree(bodies)
    assert root == defined_root(bodies)
    tree = tree_of(root)
    for body, path in zip(bodies, paths, strict=True):
        assert is_path(path)
        assert proven(root, body, path)
        assert tree.proves(body, path)


@given(many_bodies, st.data())
def test_a_batch_is_any_part_of_a_group_in_any_order(bodies: list[bytes], data: st.DataObject) -> None:
    root, paths = grow_tree(bodies)
    tree, waiting = tree_of(root), list(zip(bodies, paths, strict=True))
    if data.draw(st.booleans()):
        waiting = data.draw(st.permutations(waiting))
    while waiting:
        count = data.draw(st.integers(1, len(waiting)))
        batch, waiting = waiting[:count], waiting[count:]
        assert tree.proves_each([body for body, _ in batch], [path for _, path in batch]) == [True] * count


@pytest.mark.parametrize("size", [2, 3, 64, 100, 125, MAX_BODIES])
def test_of_a_batch_in_order_each_node_is_computed_once_and_hardly_a_step_is_read(size: int) -> None:
    bodies = [b"%d" % number for number in range(size)]
    root, paths = grow_tree(bodies)
    with (
        mock.patch.object(merkle, "sha256", wraps=sha256) as hashing,
        mock.patch.object(merkle, "_read_step", wraps=merkle._read_step) as read,
    ):
        assert all(tree_of(root).proves_each(bodies, paths))
    assert hashing.call_count == 2 * size - 1
    # Only those between the whole subtrees: none of a whole tree.
    assert read.call_count < MAX_LEVELS
    assert read.call_count == 0 or size not in {2, 64, MAX_BODIES}


@pytest.mark.parametrize("wrong", ["body", "path", "order"])
def test_one_wrong_message_of_a_batch_is_refused_alone_and_costs_the_others_twice_at_most(wrong: str) -> None:
    bodies = [b"%d" % number for number in range(MAX_BODIES)]
    root, paths = grow_tree(bodies)
    expected = [True] * MAX_BODIES
    match wrong:
        case "body":
            bodies[40], expected[40] = b"evil", False
        case "path":
            paths[40], expected[40] = paths[41], False
        case _:
            paths[40], paths[41], expected[40:42] = paths[41], paths[40], [False, False]
    tree = tree_of(root)
    with mock.patch.object(merkle, "sha256", wraps=sha256) as hashing:
        assert tree.proves_each(bodies, paths) == expected
    assert hashing.call_count <= 4 * MAX_BODIES + MAX_LEVELS
    # The wrong one left nothing behind.
    assert tree.proves_each(bodies, paths) == expected
    assert set(tree._digests.values()) <= nodes_of([b"%d" % number for number in range(MAX_BODIES)])


def nodes_of(bodies: list[bytes]) -> set[bytes]:
    """All digests of a tree whose levels are even."""
    level, nodes = [leaf(body) for body in bodies], set[bytes]()
    while level:
        nodes.update(level)
        level = [node(*pair) for pair in zip(level[::2], level[1::2], strict=False)]
    return nodes


@given(many_bodies, st.data())
def test_what_a_tree_has_learnt_never_changes_its_answer(bodies: list[bytes], data: st.DataObject) -> None:
    """Genuine and forged paths come in any order."""
    root, paths = grow_tree(bodies)
    foreign = grow_tree([*bodies, b"other"])[1]
    pieces = [piece for path in (*paths, *foreign) for piece in steps(path)]
    forged = st.one_of(
        st.sampled_from([*paths, *foreign]),
        st.lists(st.sampled_from(pieces), max_size=MAX_LEVELS + 1).map("".join),
        st.tuples(st.sampled_from(paths), st.integers(0, 300), st.characters()).map(
            lambda drawn: drawn[0][: drawn[1]] + drawn[2] + drawn[0][drawn[1] + 1 :]
        ),
    )
    tree, genuine = tree_of(root), set(zip(bodies, paths, strict=True))
    for _ in range(6):
        start = data.draw(st.integers(0, len(bodies) - 1))
        batch = list(zip(bodies, paths, strict=True))[start : start + data.draw(st.integers(0, 9))]
        for _ in range(2):
            pair = data.draw(st.sampled_from([*bodies, b"other"])), data.draw(forged)
            batch.insert(data.draw(st.integers(0, len(batch))), pair)
        answers = tree.proves_each([body for body, _ in batch], [path for _, path in batch])
        assert answers == [pair in genuine for pair in batch]
        assert [tree.proves(*pair) for pair in batch] == answers


def test_a_node_is_no_body() -> None:
    """The second preimage of a tree without prefixes: a shorter path from a node's content."""
    bodies = [b"%d" % number for number in range(4)]
    root, paths = grow_tree(bodies)
    left, right = leaf(bodies[0]), leaf(bodies[1])
    for content in (left + right, b"\x01" + left + right, node(left, right), left):
        for path in (paths[0], paths[0][STEP_CHARACTERS:]):
            assert not proven(root, content, path)
    # Nor are both digests under the root a body with the root's path, which is empty.
    assert not proven(root, node(left, right) + node(leaf(bodies[2]), leaf(bodies[3])), "")


def test_an_odd_body_is_not_doubled() -> None:
    """Bitcoin's trees double it, so that two lists have one root (CVE-2012-2459)."""
    three = [b"a", b"b", b"c"]
    root, paths = grow_tree(three)
    assert root != grow_tree([*three, b"c"])[0]
    for stands_right in (0, 1):
        assert not proven(root, b"c", step(leaf(b"c"), stands_right=stands_right) + paths[2])


def test_a_path_counts_at_its_own_place_alone() -> None:
    bodies = [b"%d" % number for number in range(7)]
    root, paths = grow_tree(bodies)
    for at, body in enumerate(bodies):
        for place, path in enumerate(paths):
            assert proven(root, body, path) == (at == place)
            mirrored = "".join(
                step(raw[1:], stands_right=1 - raw[0]) for raw in map(urlsafe_b64decode, steps(path))
            )
            assert not proven(root, body, mirrored)


def test_a_path_that_is_too_long_is_none_although_it_leads_to_the_root() -> None:
    bodies = [b"%d" % number for number in range(2 * MAX_BODIES)]
    root, paths = grow_tree(bodies)
    assert not is_path(paths[0])
    assert not proven(root, bodies[0], paths[0])
    tree = tree_of(root)
    assert not any(tree.proves_each(bodies, paths))
    assert not tree._digests


@pytest.mark.parametrize("spoil", ["side", "short", "long", "plus", "other letters", "empty"])
def test_a_step_has_one_form(spoil: str) -> None:
    # A pair whose step has letters that base64 and base64url write differently.
    pair = next(
        pair for pair in ([b"a", b"%d" % number] for number in range(100)) if "-" in grow_tree(pair)[1][0]
    )
    root, (path, _) = grow_tree(pair)
    digest = urlsafe_b64decode(path)[1:]
    assert proven(root, pair[0], path)
    spoilt = {
        "side": step(digest, stands_right=2),
        "short": path[:-4],
        "long": path + path[:4],
        "plus": path.replace("-", "+"),
        "other letters": path[:3] + "!" + path[3:-1],
        "empty": "",
    }[spoil]
    assert not proven(root, pair[0], spoilt)


def test_a_digest_is_not_cut_otherwise() -> None:
    """Two neighbours of other lengths have the same bytes one behind the other."""
    root, (path, _) = grow_tree([b"a", b"b"])
    whole = b"\x01" + leaf(b"a") + leaf(b"b")
    assert sha256(whole).digest() == root
    for length in (30, 33, 36):
        text = urlsafe_b64encode(b"\x01" + whole[1:][-length:]).decode().rstrip("=")
        assert not proven(root, b"a", text)
    assert proven(root, b"a", path)


def test_a_signature_is_asked_for_until_it_holds_and_then_no_more() -> None:
    """A proven tree costs an attacker's paths digests alone, and remembers none of them."""
    bodies = [b"%d" % number for number in range(MAX_BODIES)]
    root, paths = grow_tree(bodies)
    candidates: list[bytes] = []

    def is_root(digest: bytes) -> bool:
        candidates.append(digest)
        return digest == root

    tree = ProvenTree(is_root)
    assert not tree.proves(b"evil", paths[0])
    assert not tree._digests
    for body, path in zip(bodies, paths, strict=True):
        assert tree.proves(body, path)
    assert len(candidates) == 2
    remembered = dict(tree._digests)
    assert len(remembered) < 2 * MAX_BODIES
    for number in range(1000):
        assert not tree.proves(b"evil %d" % number, paths[number % MAX_BODIES])
        assert not tree.proves(bodies[0], step(sha256(b"%d" % number).digest(), stands_right=1) * MAX_LEVELS)
    assert len(candidates) == 2
    assert tree._digests == remembered


@given(many_bodies, st.randoms(use_true_random=False))
def test_each_node_is_computed_once_in_any_order(bodies: list[bytes], random: Random) -> None:
    root, paths = grow_tree(bodies)
    tree, pairs = tree_of(root), list(zip(bodies, paths, strict=True))
    random.shuffle(pairs)
    with mock.patch.object(merkle, "_parent", wraps=merkle._parent) as parent:
        assert all(tree.proves(body, path) for body, path in pairs)
    assert parent.call_count == len(bodies) - 1


@given(st.text(), st.binary(max_size=40))
def test_nothing_breaks_a_tree(path: str, body: bytes) -> None:
    root, genuine = grow_tree([b"a", b"b"])
    assert not proven(root, body, path)
    assert tree_of(root).proves_each([b"a", body, b"b", body], [genuine[0], path, genuine[1], path]) == [
        True,
        False,
        True,
        False,
    ]
