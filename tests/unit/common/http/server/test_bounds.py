"""How many connections a server takes, by its limit of descriptors."""

import pytest

from solstice_common.http.server.bodies import Bodies
from solstice_common.http.server.bounds import Bounds, connections_allowed


@pytest.mark.parametrize(
    ("requested", "descriptors", "servers", "allowed"),
    [
        (512, 4096, 1, 512),
        (5000, 4096, 1, 3072),
        (5000, 4096, 2, 1536),
        (5000, 4099, 1, 3075),
        (5000, 4096, 5, 614),
        (512, 256, 1, 192),
        (512, 100, 1, 36),
        (512, 65, 1, 1),
        (512, 10, 3, 1),
        (0, 4096, 1, 1),
    ],
    ids=[
        *("as asked", "a quarter stays free", "shared by two", "a quarter in whole", "shared in whole"),
        *("at least 64 stay free", "few descriptors"),
        *("almost none", "too few", "none asked for"),
    ],
)
def test_descriptors_for_everything_else_stay_free(
    requested: int, descriptors: int, servers: int, allowed: int
) -> None:
    found = connections_allowed(requested, descriptors, servers=servers)
    assert (type(found), found) == (int, allowed)


def test_one_server_has_all_connections_that_are_allowed() -> None:
    assert connections_allowed(5000, 4096) == connections_allowed(5000, 4096, servers=1)


def test_a_body_of_64_kib_is_never_given_up_by_default() -> None:
    """So a genuine webhook is taken for any number of other senders."""
    bounds, given_up = Bounds(), list[str]()
    bodies = Bodies(bounds.body_bytes)
    for _ in range(bounds.connections):
        bodies.body(lambda: given_up.append("small")).grow(64 * 1024)
    assert given_up == []
    bodies.body(lambda: given_up.append("large")).grow(64 * 1024 + 1)
    assert given_up == ["large"]
