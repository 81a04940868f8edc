"""The fast path and the router know the same webhooks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match

from solstice_forge.edge.urls import ALIVE, METRICS, READY, WEBHOOK, Url, source_in_bytes, source_in_path

PARTS = st.text(st.sampled_from("ab.-_/%?é\N{SNOWMAN}0"), max_size=6)


@given(st.sampled_from(["/webhooks/", "/webhooks", "/", ""]), PARTS, st.sampled_from(["", "/", "//"]))
def test_what_the_first_door_takes_the_second_reads_in_the_same_way(begin: str, part: str, end: str) -> None:
    url = f"{begin}{part}{end}"
    source_name = source_in_bytes(url.encode())
    assert source_name in {None, source_in_path(url)}
    assert (source_in_path(url) is not None) == _routed("POST", url)


@pytest.mark.parametrize("url", [b"/webhooks/acme", b"/webhooks/acme/"])
def test_a_plain_webhook_is_taken_by_the_first_door(url: bytes) -> None:
    assert source_in_bytes(url) == "acme"


@pytest.mark.parametrize("url", [b"/webhooks/acme?x=1", b"/webhooks/%61cme", b"/webhooks/", b"/webhooks/a/b"])
def test_what_has_to_be_read_first_is_left_to_asgi(url: bytes) -> None:
    assert source_in_bytes(url) is None


@pytest.mark.parametrize("url", [WEBHOOK, ALIVE, READY, METRICS], ids=lambda url: url.path)
def test_each_takes_one_method_with_or_without_a_slash(url: Url) -> None:
    for route in url.routes(_never):
        assert route.methods is not None
        assert route.methods - {"HEAD"} == {url.method}
    assert [route.path for route in url.routes(_never)] == [url.path, f"{url.path}/"]


def _routed(method: str, path: str) -> bool:
    scope = {"type": "http", "method": method, "path": path}
    return any(route.matches(scope)[0] is Match.FULL for route in WEBHOOK.routes(_never))


async def _never(*_: object) -> None:
    raise NotImplementedError
