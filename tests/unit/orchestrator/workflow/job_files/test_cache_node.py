"""A job says which of its files later jobs find again."""

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.jobs import CacheSpec
from solstice_orchestrator.store.records.rows import decode_spec, encode_spec
from solstice_orchestrator.workflow.job_files.cache_node import MAX_CACHES, MAX_FALLBACKS
from solstice_orchestrator.workflow.reader import parse_workflow


def caches(lines: str, *, defaults: str = "") -> list[tuple[CacheSpec, ...]]:
    top = f"defaults {{\n{defaults}\n}}\n" if defaults else ""
    jobs = parse_workflow(
        f"{top}job build {{\n{lines}\n step run=x\n}}".encode(), default_runs_on="linux"
    ).jobs
    assert [decode_spec(encode_spec(each)) for each in jobs] == list(jobs)
    return [each.caches for each in jobs]


def test_the_key_of_a_cache_begins_with_its_name() -> None:
    assert caches('cache "pip" path="~/.cache/pip" key="{checksum:requirements.txt}" fallback="pip-"') == [
        (
            CacheSpec(
                name="pip",
                paths=("~/.cache/pip",),
                key="pip-{checksum:requirements.txt}",
                fallbacks=("pip-",),
            ),
        )
    ]
    assert caches('cache pip path=x key="pip-1"')[0][0].key == "pip-1"
    assert caches("cache pip path=x key=pip")[0][0].key == "pip-pip"
    assert caches("") == [()]


def test_a_cache_may_have_several_paths_and_fallbacks() -> None:
    ((cache,),) = caches(
        'cache npm key="{checksum:package-lock.json,*/package-lock.json}" fallback="npm-a-" {\n'
        'path "node_modules" "~/.npm"\nfallback "npm-b-"\nfallback "npm-"\n}'
    )
    assert cache.paths == ("node_modules", "~/.npm")
    assert cache.fallbacks == ("npm-a-", "npm-b-", "npm-")


def test_each_job_of_a_matrix_has_a_key_of_its_own() -> None:
    found = caches('matrix { py "3.11" "3.12" }\ncache pip path=x key="{matrix.py}-{checksum:a}"')
    assert [each.key for (each,) in found] == ["pip-3.11-{checksum:a}", "pip-3.12-{checksum:a}"]


def test_caches_of_defaults_belong_to_every_job_and_are_replaced_by_name() -> None:
    defaults = "cache pip path=x key=1\ncache npm path=y key=1".replace("=1", '="1"')
    assert [each.name for each in caches("", defaults=defaults)[0]] == ["pip", "npm"]
    (own,) = caches('cache pip path=z key="2"', defaults=defaults)
    assert [(each.name, each.paths) for each in own] == [("npm", ("y",)), ("pip", ("z",))]


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ("cache", "2:1", "one name"),
        ("cache a b path=x key=y", "2:9", "one name"),
        ("cache a key=y", "2:1", "needs path"),
        ("cache a path=x", "2:1", "needs key"),
        ("cache a path=x key=y when=now", "2:22", "no property 'when'"),
        ("cache a path=x key=y { x }", "2:24", "'x' is not known in a cache"),
        ("cache a key=y { path }", "2:17", "one or more texts"),
        ('cache "a/b" path=x key=y', "2:7", "cannot be the name"),
        (f"cache {'a' * 41} path=x key=y", "2:7", "cannot be the name"),
        ("cache a path=x key=y\ncache a path=z key=y", "3:7", "already"),
        ("\n".join(f"cache a{n} path=x{n} key=y" for n in range(MAX_CACHES + 1)), "12:1", "10 caches"),
        ('cache a path="" key=y', "2:14", "between 1 and 1024"),
        ('cache a path="/root/.cache" key=y', "2:14", "in the workspace or in the home"),
        ('cache a path="~" key=y', "2:14", "'~'"),
        ('cache a path="~/" key=y', "2:14", "empty"),
        ('cache a path="~/../x" key=y', "2:14", "'..'"),
        ('cache a path="~root/x" key=y\ncache b path="a/~/x" key=y', "3:14", "'~'"),
        ('cache a path="a/../../x" key=y', "2:14", "'..'"),
        ('cache a path="a\\u{0}b" key=y', "2:14", "U+0000"),
        ('cache a path=x key=y\ncache b path="x/y" key=y', "3:1", "in one another"),
        ('cache a key=y { path "x/y" x }', "2:1", "in one another"),
        ('cache a path=x key=""', "2:20", "between 1 and 1024"),
        ('cache a path=x key="a\\nb"', "2:20", "one line"),
        (f"cache a path=x key={'k' * 149}", "2:20", "has 151 bytes"),
        ('cache a path=x key="{checksum:a}{checksum:b}{checksum:c}{checksum:d}"', "2:20", "has 162 bytes"),
        ('cache a path=x key="{branch}"', "2:20", "{branch} is not known in a key"),
        ('cache a path=x key="{checksum:a"', "2:20", "brace"),
        ('cache a path=x key="{checksum:}"', "2:20", "names no file"),
        ('cache a path=x key="{checksum:/etc/passwd}"', "2:20", "names no file"),
        ('cache a path=x key="{checksum:a,../b}"', "2:20", "'../b' names no file"),
        ('cache a path=x key="{checksum:x[}"', "2:20", "without its ]"),
        ('cache a path=x key="{matrix.os}"', "2:20", "no matrix"),
        ("cache a path=x key=y fallback=b-", "2:31", "begin with 'a-'"),
        (
            f"cache a path=x key=y {{ fallback {' '.join(['a-'] * (MAX_FALLBACKS + 1))} }}",
            "2:63",
            "10 of fallback",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(line: str, place: str, words: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        caches(line)
    assert f"{caught.value.line}:{caught.value.column}" == place
    assert words in str(caught.value)


def test_caches_of_a_job_and_of_defaults_are_limited_together() -> None:
    defaults = "\n".join(f"cache d{n} path=d{n} key=y" for n in range(MAX_CACHES))
    with pytest.raises(InvalidWorkflow, match=r"10 caches, those of 'defaults' counted"):
        caches("cache a path=a key=y", defaults=defaults)
    with pytest.raises(InvalidWorkflow, match="in one another"):
        caches('cache a path="d1/x" key=y', defaults="cache d1 path=d1 key=y")
