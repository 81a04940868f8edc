"""Caches are in a directory or a bucket, and a wrong setting is named."""

import sys
from pathlib import Path
from typing import Any

import pytest

from solstice_common.cli.options import load_settings
from solstice_common.errors import ConfigurationError
from solstice_orchestrator.settings import OrchestratorSettings
from solstice_orchestrator.worker.caches.configured_caches import caches_of

GOOD = 'key_id = "a"\nsecret = "hunter2"\n'


def place(**settings: Any) -> str:
    return caches_of(load_settings(OrchestratorSettings, **settings)).objects.place


def test_caches_are_where_the_settings_say(tmp_path: Path) -> None:
    assert place(cache_directory=tmp_path) == str(tmp_path)
    (tmp_path / "c.toml").write_text(GOOD + 'token = "t"\n')
    bucket = {"cache_bucket": "s3://caches/a/b", "cache_credentials": str(tmp_path / "c.toml")}
    assert place(**bucket) == "s3://caches/a/b"
    assert place(**bucket, cache_endpoint="https://s3.example") == "s3://caches/a/b at https://s3.example"


@pytest.mark.parametrize(
    ("bucket", "content", "words"),
    [
        ("caches", GOOD, "CACHE_BUCKET caches: write it as s3://BUCKET"),
        ("s3:///x", GOOD, "write it as s3://BUCKET"),
        ("s3://a:b@caches", GOOD, "write it as s3://BUCKET"),
        ("s3://caches", None, "No such file or directory"),
        ("s3://caches", "key_id = 'a'\nsecret = hunter2\n", "no TOML"),
        ("s3://caches", 'key_id = "a"\n', 'it has key_id = "..." and secret = "..."'),
        ("s3://caches", GOOD + 'secrets = "x"\n', "it has key_id"),
        ("s3://caches", 'key_id = "a"\nsecret = 5\n', "all text"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_named(
    bucket: str, content: str | None, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        place(cache_bucket=bucket, cache_credentials=str(file))
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_endpoint_has_no_password() -> None:
    with pytest.raises(ConfigurationError, match="CACHE_ENDPOINT"):
        place(cache_bucket="s3://caches", cache_endpoint="https://a:b@s3.example")


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text(GOOD)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'solstice-ci\[s3\]'"):
        place(cache_bucket="s3://caches", cache_credentials=str(tmp_path / "c.toml"))
