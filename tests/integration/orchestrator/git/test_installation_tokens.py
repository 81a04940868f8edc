"""A GitHub App fetches with tokens of one repository, from a fake API."""

import base64
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from solstice_orchestrator.git.checkouts.checkout import check_out
from solstice_orchestrator.git.command import CheckoutFailed, GitPolicy
from solstice_orchestrator.git.credentials.git_credentials import GitCredentials
from solstice_orchestrator.git.credentials.installation_tokens import InstallationTokens, NoToken, api_of
from tests.builders import job_request
from tests.repositories import Repository
from tests.servers.certificates import authority
from tests.servers.git_servers import AskingServer, git_backend, http_server
from tests.servers.http_proxy import https_server

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
).decode()
NOW = 1_800_000_000.0
URL = "https://github.com/river/otter.git"


class FakeGitHub:
    """The two calls by which an App gets a token."""

    def __init__(self) -> None:
        self.port = 0
        self.issued = 0
        self.bodies: list[Any] = []
        self.claims: list[Any] = []
        self.manner = "works"
        self.lifetime = 3600.0

    def handler(self) -> Any:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                fake.check(self.headers["Authorization"])
                if fake.manner == "redirects":
                    self.send_response(302)
                    self.send_header("Location", f"http://localhost:{fake.port}/stolen")
                    self.end_headers()
                elif fake.manner == "endless":
                    self.send_response(200)
                    self.end_headers()
                    try:
                        while True:
                            self.wfile.write(b" " * 65536)
                    except OSError:
                        return
                elif self.path == "/repos/river/otter/installation" and fake.manner != "absent":
                    self.answer({"id": 42})
                else:
                    self.answer({"message": "Not Found"}, 404)

            def do_POST(self) -> None:
                fake.check(self.headers["Authorization"])
                fake.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                assert self.path == "/app/installations/42/access_tokens"
                fake.issued += 1
                expires = datetime.fromtimestamp(NOW + fake.lifetime, UTC).isoformat()
                self.answer({"token": f"ghs_plaNted{fake.issued}", "expires_at": expires}, 201)

            def answer(self, document: Any, status: int = 200) -> None:
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler

    def check(self, authorization: str) -> None:
        signed, _, signature = authorization.removeprefix("Bearer ").rpartition(".")
        octets = base64.urlsafe_b64decode(f"{signature}==")
        KEY.public_key().verify(octets, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.claims.append(json.loads(base64.urlsafe_b64decode(f"{signed.partition('.')[2]}==")))


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    fake = FakeGitHub()
    with http_server(fake.handler()) as fake.port:
        yield fake


async def token(tokens: InstallationTokens, github: FakeGitHub, url: str = URL) -> str:
    return await tokens.token(7, PEM, f"http://127.0.0.1:{github.port}", url)


async def test_a_token_reads_one_repository_and_is_used_until_it_is_about_to_expire(
    github: FakeGitHub,
) -> None:
    now = NOW
    tokens = InstallationTokens(now=lambda: now)
    assert [await token(tokens, github) for _ in range(3)] == ["ghs_plaNted1"] * 3
    assert github.bodies == [{"repositories": ["otter"], "permissions": {"contents": "read"}}]
    assert {claims["iss"] for claims in github.claims} == {"7"}
    now = NOW + 3600 - 299
    github.lifetime = 7200
    assert await token(tokens, github) == "ghs_plaNted2"
    tokens.forget("ghs_plaNted2")
    assert await token(tokens, github) == "ghs_plaNted3"


@pytest.mark.parametrize(
    ("manner", "words"),
    [
        ("absent", "is not installed on the repository"),
        ("redirects", r"refused a token for the GitHub App \(302\)"),
        ("endless", "gave an endless answer"),
    ],
)
async def test_an_api_that_gives_no_token_is_named(manner: str, words: str, github: FakeGitHub) -> None:
    github.manner = manner
    with pytest.raises(NoToken, match=words):
        await token(InstallationTokens(now=lambda: NOW), github)
    assert len(github.claims) == 1


@pytest.mark.parametrize(
    ("url", "api"),
    [(URL, "https://api.github.com"), ("https://git.example:8443/a/b", "https://git.example:8443/api/v3")],
)
def test_the_api_is_that_of_the_repositorys_host(url: str, api: str) -> None:
    assert api_of(url) == api


async def test_git_fetches_with_the_token_of_an_app(github: FakeGitHub, tmp_path: Path) -> None:
    signer = authority(tmp_path / "authority")
    repository = Repository(tmp_path / "root" / "river" / "otter")
    sha = repository.commit({"hello.txt": "ahoy\n"})
    asking = AskingServer("x-access-token", "ghs_plaNted1")
    (tmp_path / "app.pem").write_text(PEM)
    (tmp_path / "app.pem").chmod(0o600)
    rules = tmp_path / "credentials.toml"
    handler = asking.handler(git_backend(tmp_path / "root"))
    with https_server(handler, signer.sign("forge")) as port:
        rules.write_text(
            f'[[rules]]\nrepositories = ["127.0.0.1:{port}/river/**"]\n'
            f'github_app = {{ id = 7, private_key = "file:app.pem", api_url = "http://127.0.0.1:{github.port}" }}\n'
        )
        policy = GitPolicy(
            environment={"PATH": os.environ["PATH"], "GIT_SSL_CAINFO": str(signer.certificate)},
            credentials=GitCredentials(str(rules), {}),
        )
        url = f"https://127.0.0.1:{port}/river/otter/.git"
        request = job_request(repo_url=url, commit_sha=sha, trusted=True)
        await check_out(request, tmp_path / "one", policy=policy, scratch=tmp_path / "scratch")
        assert (tmp_path / "one" / "hello.txt").read_text() == "ahoy\n"
        assert {given for _, given in asking.requests} == {asking.authorization}
        # A token that is refused is not used again.
        asking.authorization = "of a token that will be revoked"
        with pytest.raises(CheckoutFailed, match=r"refused the credential \(401\)"):
            await check_out(request, tmp_path / "two", policy=policy, scratch=tmp_path / "scratch")
        asking.authorization = AskingServer("x-access-token", "ghs_plaNted2").authorization
        await check_out(request, tmp_path / "three", policy=policy, scratch=tmp_path / "scratch")
    assert github.issued == 2
