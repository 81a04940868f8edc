"""Judges how durable a Redis server's replies are, by its settings. Pure.

Measured with power cuts: only `appendonly yes` with `appendfsync always` lost no confirmed message; WAITAOF
with `everysec` did (github.com/redis/redis/issues/13793), so it never counts.
"""

from collections.abc import Mapping
from typing import Any, Final

from solstice_common.broker.capabilities import Certainty
from solstice_common.values.value import Value

SETTINGS_READ: Final = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")
"""The settings to ask CONFIG GET for."""
LEAST_VERSION: Final = (6, 2)


class Durability(Value, frozen=True, kw_only=True):
    """How durable a server is, and why it may be unusable."""

    durable: Certainty
    degraded: str | None = None
    """Why a reply does not promise durability, with the setting to change."""
    blocked: str | None = None
    """Why nothing may be published now."""


def judged(config: Mapping[str, str] | None, info: Mapping[str, Any]) -> Durability:
    """Judge a server by its `config`, None where that is not allowed, and its INFO."""
    policy = (config or {}).get("maxmemory-policy") or str(info.get("maxmemory_policy", ""))
    durable, degraded = _durable(config, info)
    return Durability(durable=durable, degraded=degraded, blocked=_evicting(policy) or _blocked(info))


def unusable(info: Mapping[str, Any]) -> str | None:
    """Return why this server can never be our broker, else None."""
    if str(info.get("cluster_enabled", "0")) == "1":
        return (
            "it is a Redis Cluster, whose slots our scripts would cross; use a server with cluster-enabled no"
        )
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < LEAST_VERSION:
        return f"it is Redis {version}; Solstice CI needs 6.2 or newer"
    return None


def _durable(config: Mapping[str, str] | None, info: Mapping[str, Any]) -> tuple[Certainty, str | None]:
    if str((config or {}).get("appendonly", info.get("aof_enabled", ""))) in {"no", "0"}:
        return Certainty.NO, "not durable, AOF is off; set appendonly yes and appendfsync always"
    if not config or "appendfsync" not in config:
        return Certainty.UNKNOWN, "durability unknown, CONFIG is not allowed; grant +config|get to its user"
    if config["appendfsync"] != "always":
        return Certainty.NO, f"not durable, appendfsync {config['appendfsync']}; set appendfsync always"
    if config.get("no-appendfsync-on-rewrite", "no") != "no":
        return (
            Certainty.NO,
            "not durable, no fsync while the AOF is rewritten; set no-appendfsync-on-rewrite no",
        )
    return Certainty.YES, None


def evicts_queues(policy: str) -> bool:
    """Return whether a `maxmemory-policy` may evict queues."""
    # volatile-* evicts only keys with a time to live: ours are idempotency keys, whose loss costs only work.
    return bool(policy) and policy != "noeviction" and not policy.startswith("volatile-")


def _evicting(policy: str) -> str | None:
    if not evicts_queues(policy):
        return None
    return f"refused: maxmemory-policy {policy} may evict queues; set maxmemory-policy noeviction"


def _blocked(info: Mapping[str, Any]) -> str | None:
    if str(info.get("loading", "0")) == "1":
        return "the server is loading its data"
    if info.get("role") == "slave":
        return "the server is a replica and takes no writes; name its primary"
    if info.get("aof_last_write_status", "ok") != "ok":
        return "the server cannot write its AOF; fix its disk"
    limit = int(info.get("maxmemory", 0) or 0)
    if limit and int(info.get("used_memory", 0) or 0) >= limit:
        return f"out of memory: maxmemory is {limit} bytes; raise it, or see why messages are not consumed"
    return None
