"""Callers that count as programs of this machine, and empty token files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from solstice_common.http.access import Access, Caller, Denied
from solstice_common.http.local_callers import is_local, is_loopback_host
from solstice_common.http.token_file import TokenFile, change
from solstice_common.http.tokens import Token, TokenScope, mint

HERE = [(b"host", b"127.0.0.1:8081")]


def request_from(
    headers: Sequence[tuple[bytes, bytes]], *, peer: str | None = "127.0.0.1", version: str = "1.1"
) -> bool:
    return is_local(peer=peer, headers=headers, http_version=version)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8081", "localhost", "LOCALHOST:1", "[::1]:8081", "127.8.9.1"]
)
def test_a_loopback_host_is_one(host: str) -> None:
    assert is_loopback_host(host)
    assert request_from([(b"host", host.encode())])


@pytest.mark.parametrize(
    "host",
    ["", "127.0.0.1:1,evil", "127.0.0.1,evil", "evil", "a@127.0.0.1", "127.0.0.1.", "127.1", "0177.0.0.1", "2130706433",
     "0x7f.0.0.1", "::1", "[::1", "[::1]evil", "localhost.", "localhost.evil", "127.0.0.1:x", "127.0.0.1 ", "[::]", "0.0.0.1"],
)  # fmt: skip
def test_nothing_else_is_a_loopback_host(host: str) -> None:
    assert not request_from([(b"host", host.encode())])


@pytest.mark.parametrize(
    "name",
    ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Anything", "X-Real-IP",
     "CF-Connecting-IP", "CF-Ray", "True-Client-IP", "X-Client-IP", "X-Cluster-Client-IP", "X-Original-Forwarded-For",
     "X-Original-Host", "X-Envoy-External-Address", "Fly-Client-IP", "X-ProxyUser-Ip"],
)  # fmt: skip
def test_a_header_of_a_proxy_shows_another_caller(name: str) -> None:
    assert request_from(HERE)
    assert not request_from([*HERE, (name.lower().encode(), b"127.0.0.1")])


def test_another_peer_two_hosts_and_old_http_are_not_local() -> None:
    assert not request_from(HERE, peer="203.0.113.7")
    assert not request_from(HERE, peer=None)
    assert not request_from([*HERE, *HERE])
    assert not request_from([])
    assert not request_from(HERE, version="1.0")
    assert request_from(HERE, peer="::ffff:127.0.0.1")


def reader() -> Token:
    return mint("reader", [TokenScope.READ], now=0.0, lifetime_seconds=None, random_bytes=bytes(32))[0]


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "restarted"])
def test_a_token_file_that_lost_its_last_token_stays_shut(tmp_path: Path, restarted: bool) -> None:
    path = tmp_path / "tokens.json"
    access = Access(file=TokenFile(path))
    assert isinstance(access.admit(TokenScope.READ, authorization=None, is_local=True), Caller)
    change(path, lambda _: [reader()])
    assert isinstance(access.admit(TokenScope.READ, authorization=None, is_local=True), Denied)
    change(path, lambda _: [])
    if restarted:
        access = Access(file=TokenFile(path))
    denied = access.admit(TokenScope.OPERATE, authorization=None, is_local=True)
    assert isinstance(denied, Denied)
    assert (denied.status, denied.reason) == (401, "no_tokens_left")
    assert access.is_shut
    assert not access.is_local_only


def test_removing_the_file_denies_access_until_the_service_restarts(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    change(path, lambda _: [reader()])
    access = Access(file=TokenFile(path))
    path.unlink()
    assert isinstance(access.admit(TokenScope.READ, authorization=None, is_local=True), Denied)
    anew = Access(file=TokenFile(path))
    assert isinstance(anew.admit(TokenScope.READ, authorization=None, is_local=True), Caller)
