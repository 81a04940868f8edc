"""The headers of an ended pull request."""

from solstice_common.broker.jetstream.jetstream_pull import unfilled


def test_pull_that_ended_says_how_many_messages_it_did_not_bring() -> None:
    assert unfilled({"Status": "408", "Nats-Pending-Messages": "17"}) == 17
    assert unfilled({"Status": "408", "Nats-Pending-Messages": "many"}) is None
    assert unfilled({"Status": "404"}) is None
