"""The durability of a Redis, judged by its settings."""

from collections.abc import Mapping
from typing import Any

import pytest

from solstice_common.broker.capabilities import Certainty
from solstice_common.broker.redis_streams.redis_durability import Durability, judged, unusable

ALWAYS: Mapping[str, str] = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}


def test_only_an_aof_that_is_always_synced_is_durable() -> None:
    judgement = judged(ALWAYS, {"aof_enabled": 1})
    assert (judgement.durable, judgement.degraded, judgement.blocked) == (Certainty.YES, None, None)
    assert Durability(durable=Certainty.YES) == judgement


@pytest.mark.parametrize(
    ("change", "degraded"),
    [
        ({"appendonly": "no"}, "not durable, AOF is off; set appendonly yes and appendfsync always"),
        ({"appendfsync": "everysec"}, "not durable, appendfsync everysec; set appendfsync always"),
        ({"appendfsync": "no"}, "not durable, appendfsync no; set appendfsync always"),
        (
            {"no-appendfsync-on-rewrite": "yes"},
            "not durable, no fsync while the AOF is rewritten; set no-appendfsync-on-rewrite no",
        ),
    ],
)
def test_anything_less_is_degraded_and_names_the_setting(change: dict[str, str], degraded: str) -> None:
    assert judged({**ALWAYS, **change}, {}) == Durability(durable=Certainty.NO, degraded=degraded)


@pytest.mark.parametrize(
    ("info", "durable"), [({"aof_enabled": 0}, Certainty.NO), ({"aof_enabled": 1}, Certainty.UNKNOWN)]
)
def test_without_config_an_aof_makes_it_unknown_and_none_makes_it_certain(
    info: dict[str, Any], durable: Certainty
) -> None:
    judgement = judged(None, info)
    assert judgement.durable is durable
    assert judgement.degraded is not None


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ("noeviction", False),
        ("volatile-lru", False),
        ("volatile-ttl", False),
        ("allkeys-lru", True),
        ("allkeys-random", True),
    ],
)
@pytest.mark.parametrize("from_info", [False, True])
def test_a_policy_that_may_evict_queues_is_refused(policy: str, refused: bool, from_info: bool) -> None:
    config = None if from_info else {**ALWAYS, "maxmemory-policy": policy}
    info = {"maxmemory_policy": policy, "aof_enabled": 1} if from_info else {}
    assert (judged(config, info).blocked or "").startswith("refused: ") is refused


@pytest.mark.parametrize(
    ("info", "detail"),
    [
        ({"loading": 1}, "loading"),
        ({"role": "slave"}, "replica"),
        ({"aof_last_write_status": "err"}, "cannot write its AOF"),
        ({"maxmemory": 100, "used_memory": 100}, "out of memory"),
    ],
)
def test_a_server_that_takes_nothing_now_is_blocked(info: dict[str, Any], detail: str) -> None:
    assert detail in (judged(ALWAYS, info).blocked or "")


def test_a_server_without_a_limit_or_below_it_is_not_blocked() -> None:
    assert judged(ALWAYS, {"maxmemory": 0, "used_memory": 100}).blocked is None
    assert judged(ALWAYS, {"maxmemory": 101, "used_memory": 100}).blocked is None
    assert judged(ALWAYS, {"maxmemory": 1}).blocked is None


@pytest.mark.parametrize(
    ("info", "suits"),
    [
        ({"redis_version": "6.0.16"}, False),
        ({"redis_version": "5"}, False),
        ({"redis_version": "6.2.14"}, True),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}, True),
        ({"redis_version": "8.2.3", "cluster_enabled": 1}, False),
    ],
)
def test_old_servers_and_clusters_do_not_suit(info: dict[str, Any], suits: bool) -> None:
    assert (unusable(info) is None) is suits
