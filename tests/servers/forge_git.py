"""The repositories of a fake forge over HTTP, for the tokens that it has issued.

A token counts in the form that the forge documents: GitHub wants the user x-access-token beside an installation token,
GitLab a deploy token's own user and any user beside other tokens, Forgejo and Gitea any user.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from solstice_common.messages import Source
from tests.servers.forge_api import ForgeApi, Reply, Request

_DENIED = Reply(status=401, document={"message": "Unauthorized"})
SCOPES: Mapping[Source, str] = {
    Source.GITLAB: "read_repository",
    Source.FORGEJO: "read:repository",
    Source.GITEA: "read:repository",
}
"""The right that a token needs for a fetch."""


@dataclass(frozen=True, kw_only=True)
class IssuedToken:
    """A token for fetches.

    `user` is the only one beside it; None: any that is not empty.
    """

    scopes: frozenset[str]
    user: str | None = None
    repository: str | None = None
    """The only one that it may read; None: any."""


class ForgeGit:
    """The repositories of one forge."""

    def __init__(self, forge: ForgeApi, mark: str) -> None:
        self.forge, self.mark = forge, mark
        self.issued: dict[str, IssuedToken] = {}
        self.revoked: set[str] = set()
        self.answers: list[tuple[str, str, int]] = []
        """Repository, authorization and status of each request."""
        if forge.origin is Source.GITLAB:
            of_project = r"/projects/(?P<repository>.+)"
            forge.on("POST", of_project + "/deploy_tokens", self._deploy_token)
            forge.on("POST", of_project + "/access_tokens", self._project_token)
        elif forge.origin in SCOPES:
            forge.on("POST", r"/users/[^/]+/tokens", self._user_token)

    def handler(self, server: Any) -> Any:
        """Guard the handler of a git server."""
        places = self

        def do_get(self: Any) -> None:
            repository = self.path.partition(".git/")[0].removeprefix("/")
            given = self.headers.get("Authorization") or ""
            status = places.status_of(repository, given)
            places.answers.append((repository, given, status))
            if status == 200:
                server.do_GET(self)
                return
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="forge"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        return type("Guarded", (server,), {"do_GET": do_get})

    def status_of(self, repository: str, authorization: str) -> int:
        """What a request with this header gets; 404 where the repository is to look absent."""
        try:
            decoded = base64.b64decode(authorization.removeprefix("Basic "), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return 401
        user, _, token = decoded.partition(":")
        if not authorization.startswith("Basic ") or token in self.revoked:
            return 401
        if self.forge.origin is Source.GITHUB:
            return self._of_installation(repository, user, token)
        known = self.issued.get(token)
        if known is None or not user or known.user not in {None, user}:
            return 401
        if known.repository not in {None, repository}:
            return 404
        return 200 if SCOPES[self.forge.origin] in known.scopes else 403

    def _of_installation(self, repository: str, user: str, token: str) -> int:
        rights = self.forge.tokens.get(token)
        if rights is None or user != "x-access-token" or self.forge.expiries[token] <= self.forge.now:
            return 401
        if repository.rpartition("/")[2] not in rights["repositories"]:
            return 404
        return 200 if rights["permissions"].get("contents") in {"read", "write"} else 403

    def _issue(self, prefix: str, token: IssuedToken) -> str:
        text = f"{prefix}{self.mark}{len(self.issued) + 1}"
        self.issued[text] = token
        return text

    def _deploy_token(self, request: Request) -> Reply:
        if not self.forge.allows(request):
            return _DENIED
        user = f"gitlab+deploy-token-{len(self.issued) + 1}"
        repository = request.names["repository"]
        rights = IssuedToken(scopes=frozenset(request.body["scopes"]), user=user, repository=repository)
        return Reply(status=201, document={"username": user, "token": self._issue("gldt-", rights)})

    def _project_token(self, request: Request) -> Reply:
        if not self.forge.allows(request):
            return _DENIED
        repository = request.names["repository"]
        rights = IssuedToken(scopes=frozenset(request.body["scopes"]), repository=repository)
        return Reply(status=201, document={"token": self._issue("glpat-", rights)})

    def _user_token(self, request: Request) -> Reply:
        # Forgejo and Gitea make tokens for a password alone, not for another token.
        if base64.b64decode(request.token) != f"ci:{self.forge.token}".encode():
            return _DENIED
        return Reply(
            status=201,
            document={"sha1": self._issue("", IssuedToken(scopes=frozenset(request.body["scopes"])))},
        )
