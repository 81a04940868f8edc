"""Fetches commits of a small repository without a git process of ours.

A fetch by git takes three or four processes, and two requests to the host. This one takes none and one request, or none
where the repository is on this machine. It only has to succeed: all that is unusual in the repository, the way to it or
the answer is left to git, which fetches again and knows what to say about a failure.

It connects as git's gateway does: to checked addresses, through the environment's proxy, with a verified certificate and
the repository's credential, and follows no redirect.
"""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.git import fetching
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import HttpCredential
from solstice_orchestrator.git.credentials.http_heads import read_answer
from solstice_orchestrator.git.credentials.ssh_agent import SshCredential
from solstice_orchestrator.git.credentials.upstream import NoConnection, Upstream
from solstice_orchestrator.git.objects.fetch_messages import MAX_ANSWER_BYTES, fetch_request, pack_in
from solstice_orchestrator.git.objects.local_objects import read_commits
from solstice_orchestrator.git.objects.pack_file import LeftToGit, SmallPack, read_pack
from solstice_orchestrator.git.repository import object_format
from solstice_orchestrator.processes.egress.message_heads import joined

FETCH_SECONDS: Final = 5.0
"""The time limit; then git tries."""
READ_AT_ONCE_BYTES: Final = 16 * 1024
"""A smaller pack is read without a thread, which would take longer."""
PIECE_BYTES: Final = 64 * 1024
_READERS: Final = ThreadPoolExecutor(2, thread_name_prefix="local objects")
"""Threads for repositories of this machine. Those that a disk keeps waiting are missing nowhere else."""
OK: Final = 200
_END: Final = b"\r\n\r\n"
_RESULT: Final = "application/x-git-upload-pack-result"
_FIELDS: Final = (
    ("User-Agent", "git/2 (Solstice CI)"),
    ("Accept", _RESULT),
    ("Content-Type", "application/x-git-upload-pack-request"),
    ("Git-Protocol", "version=2"),
)
_DIRECTORY_URL: Final = re.compile(r"file://(/[A-Za-z0-9._/-]+)")
_TEXT: Final = bytes((*b"\t\n\f\r", *range(0x20, 0x7F), *range(0x80, 0x100)))
"""The bytes of texts in UTF-8; those of control characters are not among them."""
_HOST_URL: Final = re.compile(r"https?://[^/?#@]+(/[!-~]+)")


async def fetch_small(request: JobRequestV1, shas: Sequence[str], *, policy: GitPolicy) -> SmallPack:
    """Return the objects of these commits of the request's repository; raises LeftToGit."""
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            fetching.check_protocol(request.repo_url, policy)
            if here := _DIRECTORY_URL.fullmatch(request.repo_url):
                return await _from_directory(Path(here[1]), shas)
            answer = await _from_host(request, fetch_request(shas), policy)
        pack, digest = pack_in(answer), object_format(shas[0])
        if len(pack) <= READ_AT_ONCE_BYTES:
            return _read(pack, digest)
        return await asyncio.to_thread(_read, pack, digest)
    except (
        CheckoutFailed,
        NoConnection,
        TimeoutError,
        OSError,
        EOFError,
        ValueError,
        asyncio.LimitOverrunError,
    ) as error:
        raise LeftToGit from error


def _read(pack: bytes, digest: str) -> SmallPack:
    """Read all objects of a pack; raises LeftToGit."""
    return _without_collisions(read_pack(pack, digest), digest)


def _without_collisions(read: SmallPack, digest: str) -> SmallPack:
    """Return what was read; raises LeftToGit when it could hide a collision.

    With SHA-1 it has texts and directories alone. Git looks for the traces of collisions in what it fetches, and we do not. All known ways to make one need blocks of
    almost random bytes, which no text has. Directories have some: ids, of objects that must be here.
    """
    if digest == "sha1" and not all(
        _is_text(each.content) for each in read.objects.values() if each.kind != "tree"
    ):
        raise LeftToGit
    return read


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return not content.translate(None, _TEXT)


async def _from_directory(repository: Path, shas: Sequence[str]) -> SmallPack:
    """Read a repository of this machine, in a thread: its disk may never answer."""
    digest = object_format(shas[0])
    reading = asyncio.get_running_loop().run_in_executor(_READERS, read_commits, repository, shas, digest)
    return _without_collisions(await reading, digest)


async def _from_host(request: JobRequestV1, message: bytes, policy: GitPolicy) -> bytes:
    matched = _HOST_URL.fullmatch(request.repo_url)
    if matched is None:
        raise LeftToGit
    addresses = (await fetching.pin(request, policy)).addresses
    credential = await fetching.read_credential(request, policy.credentials.choice(request), policy)
    if isinstance(credential, SshCredential):
        raise LeftToGit
    upstream = Upstream(repo_url=request.repo_url, addresses=addresses, environment=policy.environment)
    from_host, to_host = await upstream.connect()
    with contextlib.closing(to_host):
        # To an older client a server sends the body as it is, up to the end of the connection.
        line = f"POST {matched[1]}/git-upload-pack HTTP/1.0"
        fields = [("Host", upstream.parts.netloc), *_FIELDS, ("Content-Length", str(len(message)))]
        to_host.write(joined(line, [*fields, *_authorization(credential)]) + message)
        return await _body(from_host)


def _authorization(credential: HttpCredential | None) -> Sequence[tuple[str, str]]:
    return [("Authorization", credential.authorization)] if credential else []


async def _body(from_host: asyncio.StreamReader) -> bytes:
    answer, body = read_answer(await from_host.readuntil(_END)), bytearray()
    fields = {name.lower(): value for name, value in answer.fields}
    is_encoded = "transfer-encoding" in fields or "content-encoding" in fields
    if answer.status != OK or fields.get("content-type") != _RESULT or is_encoded:
        raise LeftToGit
    while piece := await from_host.read(PIECE_BYTES):
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise LeftToGit
    return bytes(body)
