"""Read the nodes `cache` of a job or of `defaults`. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from solstice_orchestrator.domain.jobs import CacheSpec
from solstice_orchestrator.workflow.env_node import Fill
from solstice_orchestrator.workflow.job_files.cache_key import (
    MAX_KEY_BYTES,
    InvalidKey,
    checksums_of,
    longest,
)
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue, SourcePosition
from solstice_orchestrator.workflow.shape import (
    children,
    expect_arguments,
    expect_childless,
    identifier,
    properties,
    text,
)

MAX_NAME: Final = 40
MAX_CACHES: Final = 10
"""Caches of one job."""
MAX_PATHS: Final = 20
MAX_FALLBACKS: Final = 10
MAX_PATH: Final = 1024
HOME: Final = "~/"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def read_caches(node: KdlNode, fill: Fill) -> tuple[CacheSpec, ...]:
    """Read the caches of a `job` or `defaults` node."""
    caches: dict[str, CacheSpec] = {}
    for child in node.children:
        if child.name == "cache":
            cache = _cache(child, caches, fill)
            _expect_apart(caches.values(), cache, child.position)
            caches[cache.name] = cache
    return tuple(caches.values())


def with_caches(
    own: Sequence[CacheSpec], defaults: Sequence[CacheSpec], position: SourcePosition
) -> tuple[CacheSpec, ...]:
    """Return the caches of a job: its own, and those of `defaults` with other names."""
    names = {each.name for each in own}
    merged = [each for each in defaults if each.name not in names]
    for cache in own:
        _expect_apart(merged, cache, position)
        merged.append(cache)
    if len(merged) > MAX_CACHES:
        raise position.problem(f"a job may have {MAX_CACHES} caches, those of 'defaults' counted")
    return tuple(merged)


def _cache(node: KdlNode, known: Collection[str], fill: Fill) -> CacheSpec:
    rule = 'a cache has one name: cache "pip" path="~/.cache/pip" key="{checksum:requirements.txt}"'
    expect_arguments(node, 1, rule)
    values = properties(node, ("path", "key", "fallback"))
    lists = {"path": _listed(values, "path"), "fallback": _listed(values, "fallback")}
    for child in children(node, ("path", "fallback"), "in a cache", once=()):
        properties(child, ())
        expect_childless(child)
        if not child.arguments:
            raise child.position.problem(f'{child.name} takes one or more texts: {child.name} "a" "b"')
        lists[child.name] += child.arguments
    name = identifier(node.arguments[0], "the name of a cache", MAX_NAME, fill=fill)
    if name in known:
        raise node.arguments[0].position.problem(f"there is a cache {name!r} already; names are unique")
    if len(known) == MAX_CACHES:
        raise node.position.problem(f"a job may have {MAX_CACHES} caches, no more")
    if not lists["path"]:
        raise node.position.problem('a cache needs path="...", the directory or file that is kept')
    if "key" not in values:
        raise node.position.problem('a cache needs key="...", for example key="{checksum:requirements.txt}"')
    for what, most in (("path", MAX_PATHS), ("fallback", MAX_FALLBACKS)):
        if len(lists[what]) > most:
            raise lists[what][most].position.problem(f"a cache may have {most} of {what}, no more")
    return CacheSpec(
        name=name,
        paths=tuple(_path(each, fill) for each in lists["path"]),
        key=_key(values["key"], name, fill),
        fallbacks=tuple(_fallback(each, name, fill) for each in lists["fallback"]),
    )


def _listed(values: Mapping[str, KdlValue], what: str) -> list[KdlValue]:
    return [values[what]] if what in values else []


def _path(value: KdlValue, fill: Fill) -> str:
    path = fill(text(value, "path"), value.position)
    if not path or len(path) > MAX_PATH:
        raise value.position.problem(f"path has between 1 and {MAX_PATH} characters")
    if path.startswith("/"):
        raise value.position.problem(
            'path is in the workspace or in the home directory: path="node_modules" or path="~/.cache/pip"'
        )
    parts = path.removeprefix(HOME).split("/")
    if any(part in {"", ".", "..", "~"} for part in parts):
        raise value.position.problem(
            f"{path[:80]!r} has a part that is empty, '.', '..' or '~'; write it as node_modules or ~/.cache/pip"
        )
    return path


def _key(value: KdlValue, name: str, fill: Fill) -> str:
    """Return the key, which begins with the name of its cache."""
    key = _filled(value, "key", fill)
    key = key if key.startswith(f"{name}-") else f"{name}-{key}"
    if longest(key) > MAX_KEY_BYTES:
        raise value.position.problem(
            f"the key has {longest(key)} bytes with its name and checksums; it may have {MAX_KEY_BYTES}"
        )
    return key


def _fallback(value: KdlValue, name: str, fill: Fill) -> str:
    fallback = _filled(value, "fallback", fill)
    if not fallback.startswith(f"{name}-"):
        raise value.position.problem(
            f"a fallback is the beginning of a key, and keys of this cache begin with {name + '-'!r}"
        )
    return fallback


def _filled(value: KdlValue, what: str, fill: Fill) -> str:
    written = fill(text(value, what), value.position)
    if not written or _CONTROL.search(written) or len(written) > MAX_PATH:
        raise value.position.problem(f"{what} has between 1 and {MAX_PATH} characters, all on one line")
    try:
        checksums_of(written)
    except InvalidKey as error:
        raise value.position.problem(str(error)) from None
    return written


def _expect_apart(known: Collection[CacheSpec], cache: CacheSpec, position: SourcePosition) -> None:
    """Check that no path of a cache is in another one of its job."""
    seen = [(path, each.name) for each in known for path in each.paths]
    for path in cache.paths:
        for other, owner in seen:
            if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
                raise position.problem(
                    f"the paths {path[:80]!r} and {other[:80]!r} of the cache {owner!r} are in one another"
                )
        seen.append((path, cache.name))
