"""Answers about large files that are none of Git LFS are refused."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.git.credentials.lfs_messages import (
    LfsDownload,
    LfsElsewhere,
    read_batch_answer,
    read_batch_request,
)

REPOSITORY = "https://forge.example/river/otter"
OID = "0c" * 32


def answer(**action: object) -> bytes:
    return json.dumps({"objects": [{"oid": OID, "size": 1, "actions": {"download": action}}]}).encode()


@pytest.mark.parametrize(
    ("href", "origin", "target"),
    [
        ("https://forge.example/x?a=1", "", "/x?a=1"),
        ("https://FORGE.example:443/x", "", "/x"),
        ("https://media.example/x?Signature=a%2Fb", "https://media.example", "/x?Signature=a%2Fb"),
        ("https://media.example:443", "https://media.example", "/"),
        ("https://media.example:9000/x", "https://media.example:9000", "/x"),
        ("https://joe:heron@media.example/x", "https://media.example", "/x"),
        ("https://joe:heron@forge.example/x", "", "/x"),
        ("https://[2001:db8::1]:9000/x", "https://[2001:db8::1]:9000", "/x"),
        ("https://forge.example:8443/x#y", "https://forge.example:8443", "/x"),
    ],
)
def test_an_object_is_at_the_repositorys_host_or_at_another(href: str, origin: str, target: str) -> None:
    assert read_batch_answer(answer(href=href), REPOSITORY) == {OID: LfsDownload(target, (), origin)}


@pytest.mark.parametrize(
    "href",
    [
        "http://forge.example/x",
        "http://media.example/x",
        "file:///etc/passwd",
        "https:///x",
        "https://a%00b/x",
        "",
    ],
)
def test_an_object_elsewhere_without_tls_or_a_name_is_refused(href: str) -> None:
    with pytest.raises(LfsElsewhere):
        read_batch_answer(answer(href=href), REPOSITORY)


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        ({"Authorization": "RemoteAuth a"}, (("Authorization", "RemoteAuth a"),)),
        ({"Host": "evil.example", "X-Key": "k"}, (("X-Key", "k"),)),
        ({"transfer-encoding": "chunked", "CONTENT-LENGTH": "7", "Connection": "upgrade"}, ()),
        (None, ()),
    ],
)
def test_the_fields_of_our_own_request_are_not_the_hosts(
    header: object, fields: tuple[tuple[str, str], ...]
) -> None:
    read = read_batch_answer(answer(href="https://media.example/x", header=header), REPOSITORY)
    assert read[OID].fields == fields


@pytest.mark.parametrize(
    "header", [{"X-Key": "a\r\nX-Other: b"}, {"X Key": "a"}, {"X-Key:": "a"}, {"X-Key": "é"}, ["X-Key"]]
)
def test_a_field_that_would_be_another_one_is_refused(header: object) -> None:
    with pytest.raises(ValueError, match=r"no header field|no object"):
        read_batch_answer(answer(href="https://media.example/x", header=header), REPOSITORY)


def test_a_signature_is_in_no_text_of_a_download() -> None:
    signed = answer(href="https://media.example/x?Signature=secret", header={"X-Key": "secret"})
    assert "secret" not in repr(read_batch_answer(signed, REPOSITORY))


@pytest.mark.parametrize("objects", [5, True, {"a": 1}, "abc", [5], [[]], [{"oid": OID, "actions": 5}]])
def test_objects_that_are_no_list_of_objects_are_refused(objects: object) -> None:
    with pytest.raises(ValueError, match="no object"):
        read_batch_answer(json.dumps({"objects": objects}).encode(), REPOSITORY)


_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("https://[media/x"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["objects", "oid", "size", "actions", "download", "href", "header"]), inner
        )
    ),
    max_leaves=12,
)


@given(_VALUES)
def test_any_other_message_is_refused_by_the_errors_that_the_gateway_knows(message: object) -> None:
    for body in (json.dumps(message).encode(), answer(href=message, header=message)):
        with contextlib.suppress(ValueError, KeyError, LfsElsewhere):
            read_batch_answer(body, REPOSITORY)
        with contextlib.suppress(ValueError, KeyError):
            read_batch_request(body)
