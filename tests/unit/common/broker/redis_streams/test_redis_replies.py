"""Replies of Redis are read: pairs, INFO, and names of connections."""

from solstice_common.broker.redis_streams.redis_replies import client_names, info, pairs


def test_pairs_stand_in_turn() -> None:
    assert pairs([b"appendonly", b"yes", b"appendfsync", b"always"]) == {
        "appendonly": "yes",
        "appendfsync": "always",
    }
    assert pairs([]) == {}


def test_info_is_read_without_its_headings() -> None:
    reply = b"# Server\r\nredis_version:7.0.15\r\nos:Linux 6.1 x86_64\r\n\r\n# Replication\r\nrole:master\r\nslave0:ip=::1,port=1\r\n"
    assert info(reply) == {
        "redis_version": "7.0.15",
        "os": "Linux 6.1 x86_64",
        "role": "master",
        "slave0": "ip=::1,port=1",
    }


def test_the_names_of_connections_are_read_and_nothing_like_them() -> None:
    reply = b"id=3 addr=127.0.0.1:1 name=reader-1 age=2 lib-name=redis-py user=default\nid=4 name= age=0\n"
    assert client_names(reply) == {"reader-1", ""}
