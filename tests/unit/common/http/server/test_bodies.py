"""The choice of the body that is given up when all together are too large."""

from solstice_common.http.server.bodies import Bodies, Body


class GivenUp:
    """Bodies by name, and the names of those that were given up."""

    def __init__(self, limit: int) -> None:
        self.bodies = Bodies(limit)
        self.names: list[str] = []

    def body(self, name: str, size: int) -> Body:
        body = self.bodies.body(lambda: self.names.append(name))
        body.grow(size)
        return body


def test_bodies_up_to_the_limit_are_all_kept() -> None:
    given = GivenUp(10)
    given.body("a", 4)
    given.body("b", 6)
    assert given.bodies.total == 10
    assert given.names == []


def test_the_largest_that_still_arrives_is_given_up_and_counts_no_more() -> None:
    given = GivenUp(10)
    small, large = given.body("small", 3), given.body("large", 6)
    small.grow(2)
    assert given.names == ["large"]
    assert (given.bodies.total, large.is_released, small.is_released) == (5, True, False)
    large.grow(100)
    assert (given.bodies.total, large.size) == (5, 6)


def test_as_many_are_given_up_as_it_takes() -> None:
    given = GivenUp(10)
    given.body("a", 4)
    given.body("b", 5)
    given.body("c", 30)
    assert given.names == ["c"]
    given.body("d", 1).grow(1)
    assert given.names == ["c", "b"]
    assert given.bodies.total == 6


def test_a_complete_body_is_kept_however_large_and_counts_until_its_request_ends() -> None:
    given = GivenUp(10)
    complete = given.body("complete", 9)
    complete.complete()
    given.body("late", 2)
    assert given.names == ["late"]
    assert given.bodies.total == 9
    complete.release()
    complete.release()
    assert given.bodies.total == 0


def test_nothing_is_left_to_give_up_when_complete_bodies_exceed_the_limit() -> None:
    given = GivenUp(10)
    complete = given.body("complete", 9)
    complete.complete()
    complete.grow(9)
    assert given.names == []
    assert given.bodies.total == 18
