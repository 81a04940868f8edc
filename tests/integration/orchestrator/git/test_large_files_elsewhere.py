"""Another host may have the large files of a repository, as with GitHub."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest

from solstice_orchestrator.domain.checkout_spec import CheckoutSpec
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.git import addresses
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import GitCredentials
from solstice_orchestrator.processes.egress.public_addresses import is_public
from tests.git_memory import git_memory
from tests.private_forge import TOKEN, PrivateForge
from tests.servers.certificates import Authority
from tests.servers.git_servers import git_backend
from tests.servers.http_proxy import http_proxy, https_server
from tests.servers.lfs_store import LfsStore

LFS = CheckoutSpec(lfs=True)
LARGE = b"large content " * 1000
SIGNATURE = "siGned-7b20"


class ObjectHost:
    """A host with the contents of objects alone, for requests that are signed."""

    def __init__(self, store: LfsStore) -> None:
        self.store, self.port = store, 0
        self.requests: list[tuple[str, dict[str, str]]] = []
        """Target and header of each request."""
        self.status, self.location = 200, ""

    def href(self, _origin: str, oid: str) -> str:
        return f"https://localhost:{self.port}/media/{oid}?X-Amz-Signature={SIGNATURE}&actor_id=1"

    def handler(self) -> Any:
        host = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                host.requests.append((self.path, {name.lower(): text for name, text in self.headers.items()}))
                oid = self.path.partition("?")[0].rpartition("/")[2]
                body = host.store.contents[oid] if host.status == 200 else b""
                self.send_response(host.status)
                if host.location:
                    self.send_header("Location", host.location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


class ForgeOfTwoHosts(PrivateForge):
    """A private repository with a large file, which another host has."""

    def __init__(self, folder: Path, signer: Authority) -> None:
        super().__init__(folder, signer)
        self.store = LfsStore()
        self.sha = self.store.commit(self.repository, {"large.bin": LARGE})
        self.objects = ObjectHost(self.store)
        self.store.href = self.objects.href


@pytest.fixture
def forge(tmp_path: Path, signer: Authority) -> Iterator[ForgeOfTwoHosts]:
    place = ForgeOfTwoHosts(tmp_path, signer)
    handler = place.asking.handler(place.store.handler(git_backend(tmp_path / "root")))
    with (
        https_server(handler, signer.sign("forge", "IP:127.0.0.1,DNS:forge.invalid")) as place.port,
        https_server(
            place.objects.handler(), signer.sign("objects", "DNS:localhost,DNS:objects.invalid")
        ) as place.objects.port,
    ):
        place.write_rules("**")
        yield place


async def test_the_other_host_gets_what_was_signed_for_it_and_no_credential(forge: ForgeOfTwoHosts) -> None:
    forge.store.header = lambda handler: {
        "X-Object-Key": SIGNATURE,
        "Authorization": handler.headers["Authorization"],
        "X-Repeated": f"of {TOKEN}",
        "Host": "evil.example",
        "Transfer-Encoding": "chunked",
        "Content-Length": "7",
    }
    place = await forge.check_out(spec=LFS)
    assert (place / "large.bin").read_bytes() == LARGE
    ((target, header),) = forge.objects.requests
    assert target.endswith(f"?X-Amz-Signature={SIGNATURE}&actor_id=1")
    assert header == {"host": f"localhost:{forge.objects.port}", "x-object-key": SIGNATURE}


async def test_the_other_host_gets_an_authorization_that_was_made_for_it(forge: ForgeOfTwoHosts) -> None:
    forge.store.header = lambda _: {"Authorization": f"RemoteAuth {SIGNATURE}"}
    assert (await forge.check_out(spec=LFS) / "large.bin").read_bytes() == LARGE
    ((_, header),) = forge.objects.requests
    assert header["authorization"] == f"RemoteAuth {SIGNATURE}"


async def test_no_process_of_git_lfs_holds_the_token_or_the_signature(forge: ForgeOfTwoHosts) -> None:
    found: list[str] = []
    searched: list[str] = []
    forms = (TOKEN, forge.asking.authorization.removeprefix("Basic "), SIGNATURE)
    contents = forge.store.contents

    class Searching(dict[str, bytes]):
        def __getitem__(self, oid: str) -> bytes:
            for where, content in git_memory(forge.folder):
                searched.append(where)
                found.extend([where] if any(form.encode() in content for form in forms) else [])
            return contents[oid]

    forge.objects.store = LfsStore()
    forge.objects.store.contents = Searching(contents)
    place = await forge.check_out(spec=LFS)
    assert any("git-lfs" in where for where in searched)
    assert found == []
    files = [file.read_bytes() for file in place.rglob("*") if file.is_file()]
    assert not any(form.encode() in content for form in forms for content in files)


@pytest.mark.parametrize(
    ("status", "location", "reason"),
    [
        (302, "https://127.0.0.1:1/", Reason.CHECKOUT_FAILED),
        (403, "", Reason.CHECKOUT_FAILED),
        (404, "", Reason.CHECKOUT_FAILED),
        (500, "", Reason.CHECKOUT_FAILED),
    ],
)
async def test_a_refusal_of_the_other_host_is_named_without_its_signature(
    status: int, location: str, reason: Reason, forge: ForgeOfTwoHosts
) -> None:
    forge.objects.status, forge.objects.location = status, location
    failed = await forge.failure(spec=LFS)
    assert failed.reason is reason
    assert f"localhost:{forge.objects.port} gives no LFS objects ({status})" in failed.detail
    assert SIGNATURE not in failed.detail


async def test_the_certificate_of_the_other_host_is_verified(forge: ForgeOfTwoHosts) -> None:
    # The certificate of this server has other names.
    forge.store.href = lambda _, oid: f"https://localhost:{forge.port}/media/{oid}"
    failed = await forge.failure(spec=LFS)
    assert f"localhost:{forge.port} cannot be reached: its certificate cannot be trusted" in failed.detail
    assert not [path for path, _ in forge.asking.requests if "/media/" in path]


async def test_the_other_host_is_reached_through_the_proxy(forge: ForgeOfTwoHosts) -> None:
    with http_proxy(user="joe", password="open sesame") as proxy:
        place = await forge.check_out(forge.policy(HTTPS_PROXY=proxy.url()), spec=LFS)
    assert (place / "large.bin").read_bytes() == LARGE
    assert f"CONNECT localhost:{forge.objects.port} HTTP/1.1" in proxy.requests


@pytest.fixture
def resolved(forge: ForgeOfTwoHosts, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], GitPolicy]:
    """A policy that checks addresses.

    No resolver knows the names, and 127.0.0.1 counts as public here.
    """

    def is_public_here(address: IPv4Address | IPv6Address) -> bool:
        return str(address) == "127.0.0.1" or is_public(address)

    def policy(of_objects: Sequence[str]) -> GitPolicy:
        async def resolve(host: str, _port: int) -> Sequence[str]:
            return {"forge.invalid": ["127.0.0.1"], "objects.invalid": of_objects}[host]

        monkeypatch.setattr(addresses, "_addresses", resolve)
        forge.rules.write_text(forge.rules.read_text().replace("127.0.0.1", "forge.invalid"))
        return replace(forge.policy(), allow_private=False, credentials=GitCredentials(str(forge.rules), {}))

    monkeypatch.setattr(addresses, "is_public", is_public_here)
    forge.store.href = lambda _, oid: f"https://objects.invalid:{forge.objects.port}/media/{oid}"
    return policy


async def test_the_other_host_is_reached_at_the_address_that_was_checked(
    forge: ForgeOfTwoHosts, resolved: Callable[[Sequence[str]], GitPolicy]
) -> None:
    url = forge.url.replace("127.0.0.1", "forge.invalid")
    place = await forge.check_out(resolved(["127.0.0.1"]), spec=LFS, repo_url=url)
    assert (place / "large.bin").read_bytes() == LARGE


@pytest.mark.parametrize(
    "found",
    [["169.254.169.254"], ["10.0.0.1"], ["::1"], ["::ffff:127.0.0.2"], ["1.1.1.1", "127.0.0.2"], ["fd00::1"]],
    ids=["metadata", "private", "loopback", "mapped", "one of two", "unique local"],
)
async def test_objects_at_an_address_of_this_network_are_not_asked_for(
    found: Sequence[str], forge: ForgeOfTwoHosts, resolved: Callable[[Sequence[str]], GitPolicy]
) -> None:
    url = forge.url.replace("127.0.0.1", "forge.invalid")
    failed = await forge.failure(resolved(found), spec=LFS, repo_url=url)
    assert failed.reason is Reason.COMMIT_UNUSABLE
    assert f"is not fetched from objects.invalid:{forge.objects.port}: " in failed.detail
    assert "GIT_ALLOW_PRIVATE" in failed.detail
    assert forge.objects.requests == []
