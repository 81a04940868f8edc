"""Read and write messages of Git LFS about objects and their places. Pure.

Source: github.com/git-lfs/git-lfs, docs/api/batch.md and docs/api/basic-transfers.md.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

MAX_OBJECTS: Final = 1000
"""The most in one message; git-lfs asks for 100."""
MEDIA_TYPE: Final = "application/vnd.git-lfs+json"
_OID: Final = re.compile(r"[0-9a-f]{64}")
_FIELD_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_FRAMING: Final = frozenset(
    {"connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Fields of our own request, which no server says for us."""
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+:[0-9a-f:.]+")
_TARGET: Final = re.compile(r"/[!-~]*")
_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class LfsObject:
    """The content of a file, by its SHA-256."""

    oid: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LfsDownload:
    """The request for the content of an object."""

    target: str = field(repr=False)
    """It may hold a signature, which is a credential."""
    fields: tuple[tuple[str, str], ...] = field(repr=False, default=())
    """They may hold a credential."""
    origin: str = ""
    """The protocol, host and port of another host that has the object; empty: the repository's."""


class LfsElsewhere(Exception):
    """The content of an object is at a place from which nothing is fetched."""


def batch_path(repo_path: str) -> str:
    """Return where the host answers for a repository at this path."""
    return f"{repo_path.removesuffix('/').removesuffix('.git')}.git/info/lfs/objects/batch"


def read_batch_request(body: bytes) -> Sequence[LfsObject]:
    """Return the objects that git-lfs wants to download; ValueError for anything else."""
    message = _object(json.loads(body))
    listed = message.get("objects")
    if message.get("operation") != "download" or not isinstance(listed, list) or len(listed) > MAX_OBJECTS:
        raise ValueError("no download")
    return [_lfs_object(_object(each)) for each in listed]


def batch_request(objects: Sequence[LfsObject]) -> bytes:
    """Return the message to the host."""
    listed = [{"oid": each.oid, "size": each.size_bytes} for each in objects]
    message = {"operation": "download", "transfers": ["basic"], "objects": listed, "hash_algo": "sha256"}
    return json.dumps(message).encode()


def read_batch_answer(body: bytes, repo_url: str) -> Mapping[str, LfsDownload]:
    """Return how to get those objects that the host has.

    Raises LfsElsewhere, and ValueError for anything that is no answer.
    """
    answer = _object(json.loads(body))
    found, objects = {}, answer.get("objects") or []
    if not isinstance(objects, list):
        raise ValueError("no objects")  # noqa: TRY004  what a stranger sent has a wrong value
    for each in objects:
        action = _object(_object(_object(each).get("actions") or {}).get("download") or {})
        if action:
            found[str(each["oid"])] = _download(action, repo_url)
    return found


def batch_answer(objects: Sequence[LfsObject], base: str, absent: Mapping[str, str]) -> bytes:
    """Return the answer for git-lfs: each object is below `base`, or `absent`."""
    listed = [
        {"oid": each.oid, "size": each.size_bytes, "error": {"code": 404, "message": absent[each.oid]}}
        if each.oid in absent
        else {
            "oid": each.oid,
            "size": each.size_bytes,
            "authenticated": True,
            "actions": {"download": {"href": f"{base}/objects/{each.oid}"}},
        }
        for each in objects
    ]
    return json.dumps({"transfer": "basic", "objects": listed}).encode()


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no object")  # noqa: TRY004  what a stranger sent has a wrong value
    return value


def _lfs_object(fields: Mapping[str, Any]) -> LfsObject:
    oid, size = fields.get("oid"), fields.get("size")
    if not isinstance(oid, str) or not _OID.fullmatch(oid):
        raise ValueError("no SHA-256")
    if not isinstance(size, int) or size < 0:
        raise ValueError("no size")
    return LfsObject(oid, size)


def _download(action: Mapping[str, Any], repo_url: str) -> LfsDownload:
    parts, own = urlsplit(str(action.get("href"))), urlsplit(repo_url)
    there, home = [
        (each.scheme, each.hostname, each.port or _PORTS.get(each.scheme)) for each in (parts, own)
    ]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = [(str(name), str(value)) for name, value in _object(action.get("header") or {}).items()]
    if not _TARGET.fullmatch(target):
        raise ValueError("no path")
    for name, value in fields:
        if not _FIELD_NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise ValueError("no header field")
    passed = tuple((name, value) for name, value in fields if name.lower() not in _FRAMING)
    return LfsDownload(target, passed, "" if there == home else _origin(*there))


def _origin(scheme: str, host: str | None, port: int | None) -> str:
    """Return the place of an object at another host; raises LfsElsewhere unless TLS protects it."""
    if host is None or not _HOST.fullmatch(host):
        raise LfsElsewhere("no host")
    if scheme != "https":
        raise LfsElsewhere(f"{host} by {scheme}")
    name = f"[{host}]" if ":" in host else host
    # A signature often covers the field Host, which has the usual port of a protocol nowhere.
    return f"https://{name}" if port == _PORTS[scheme] else f"https://{name}:{port}"
