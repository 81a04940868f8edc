"""Ed25519 keys as JSON Web Keys, and the scope of each: what it may sign. Pure.

A public key is a JWK (RFC 7517, RFC 8037) with our members `sources`, `repositories` and `rights`; a private
key is a JWK without them. Unknown members are refused, although RFC 7517 says to ignore them: a misspelt
scope would be ignored, too.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import unquote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from solstice_common.messages import Source
from solstice_common.messages.fields import Timestamp
from solstice_common.values.globs import EVERYTHING, fits, meaningful
from solstice_common.values.validation import in_words

M = TypeVar("M", bound=BaseModel)

KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""The name of a key, which is its `kid`."""


class Right(StrEnum):
    """The rights of a key: fields of a request that need one."""

    TRUSTED = "trusted"
    """Its code is trusted: it gets secrets, and runs where untrusted code does not."""
    PRIORITY = "priority"
    """Its priority is critical or high."""
    APPROVALS = "approvals"
    """A person approved a change request's commit."""
    CANCELS = "cancels"
    """It ends the runs of a change request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyScope:
    """The requests that a key may sign, by source, repository and rights."""

    sources: frozenset[Source]
    repositories: tuple[str, ...]
    """Globs of `repo_urls.name_of`, as in SECRETS_CONFIG: `forge.example/river/*`."""
    rights: frozenset[Right]

    @property
    def is_unlimited(self) -> bool:
        """Whether a key with it may sign every message."""
        return (
            EVERYTHING in self.repositories
            and self.sources.issuperset(Source)
            and self.rights.issuperset(Right)
        )

    def covers(self, source: Source, repository: str, full_name: str | None) -> bool:
        """Whether it may ask for builds of this repository (by `repo_urls.name_of`).

        `full_name` is what the message calls the repository, and what quotas, groups and lists know it by: a key for
        some repositories may not name another one.
        """
        if source not in self.sources or not fits(repository, self.repositories):
            return False
        return (
            EVERYTHING in self.repositories
            or full_name is None
            or f"/{unquote(repository)}".endswith(f"/{full_name.strip('/')}")
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class VerifyKey:
    """A public key with its scope."""

    name: str
    x: str = field(repr=False)
    """The public key's bytes, in base64url."""
    scope: KeyScope
    created_at: str | None = None

    @cached_property
    def public(self) -> Ed25519PublicKey:
        key = _imported(x=self.x)
        assert isinstance(key, Ed25519PublicKey)  # noqa: S101  for the type checker: `crv` says so
        return key


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key, and the name of its public key."""

    name: str
    private: Ed25519PrivateKey = field(repr=False)


class _Jwk(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kty: Literal["OKP"]
    crv: Literal["Ed25519"]
    kid: Annotated[str, Field(pattern=f"^{KEY_NAME.pattern}$")]
    x: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{43}$")]
    alg: Literal["Ed25519", "EdDSA"] | None = None
    use: Literal["sig"] | None = None
    key_ops: list[str] | None = None
    created_at: Timestamp | None = None


class _PrivateJwk(_Jwk):
    d: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{43}$", repr=False)]


class _PublicJwk(_Jwk):
    sources: Annotated[list[Source], Field(min_length=1)]
    repositories: Annotated[list[Annotated[str, AfterValidator(meaningful)]], Field(min_length=1)]
    rights: list[Right]


class _PrivateSet(BaseModel):
    keys: Annotated[list[_PrivateJwk], Field(min_length=1)]


class _PublicSet(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[_PublicJwk]


def new_key(name: str, scope: KeyScope, *, now: str) -> tuple[VerifyKey, str]:
    """Make a pair of keys: the public one, and the private one as text.

    `now` is RFC 3339. ValueError for a name that cannot be one.
    """
    key_pair = OKPKey.generate_key("Ed25519", private=True).as_dict(private=True)
    try:
        private = _PrivateJwk.model_validate({**key_pair, "kid": name, "use": "sig", "created_at": now})
    except ValidationError:
        raise ValueError("must be 1 to 63 letters, digits, dots, underscores and hyphens") from None
    text = private.model_dump_json(indent=2, exclude_none=True) + "\n"
    return VerifyKey(name=name, x=private.x, scope=scope, created_at=now), text


def parse_private(content: bytes) -> Sequence[SigningKey]:
    """Read a private JWK, or a set of them.

    ValueError says what is wrong, and never contains the key.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON Web Key: 'solstice keys create' makes one") from None
    keys = document if isinstance(document, dict) and "keys" in document else {"keys": [document]}
    return [_signing_key(each) for each in _validated(_PrivateSet, keys).keys]


def parse_public(content: bytes) -> Sequence[VerifyKey]:
    """Read the public keys of a JWK Set, in order; ValueError says what is wrong."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError('is no JSON Web Key Set: {"keys": [...]} is needed') from None
    keys = [_verify_key(each) for each in _validated(_PublicSet, document).keys]
    names = [key.name for key in keys]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"holds two keys {doubled!r}: give each a name of its own")
    return keys


def public_document(keys: Collection[VerifyKey]) -> bytes:
    """Return the JWK Set of these keys, as text for a file."""
    document = _PublicSet(
        keys=[
            _PublicJwk(
                kty="OKP",
                crv="Ed25519",
                kid=key.name,
                x=key.x,
                use="sig",
                created_at=key.created_at,
                sources=sorted(key.scope.sources),
                repositories=list(key.scope.repositories),
                rights=sorted(key.scope.rights),
            )
            for key in keys
        ]
    )
    return document.model_dump_json(indent=2, exclude_none=True).encode() + b"\n"


def _signing_key(jwk: _PrivateJwk) -> SigningKey:
    private = _imported(x=jwk.x, d=jwk.d)
    assert isinstance(private, Ed25519PrivateKey)  # noqa: S101  for the type checker: it has a `d`
    if OKPKey.import_key(private.public_key()).as_dict()["x"] != jwk.x:
        raise ValueError(f"the key {jwk.kid!r} is damaged: its x is not the public key of its d")
    return SigningKey(jwk.kid, private)


def _verify_key(jwk: _PublicJwk) -> VerifyKey:
    scope = KeyScope(
        sources=frozenset(jwk.sources), repositories=tuple(jwk.repositories), rights=frozenset(jwk.rights)
    )
    key = VerifyKey(name=jwk.kid, x=jwk.x, scope=scope, created_at=jwk.created_at)
    _ = key.public  # read now: an invalid key is reported at the start, not at the first message
    return key


def _imported(**parts: str) -> object:
    """Return the key of these members of a JWK; ValueError when they are not one."""
    try:
        return OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", **parts}).raw_value
    except (JoseError, ValueError) as error:
        raise ValueError(f"holds no Ed25519 key: {type(error).__name__}") from None


def _validated(model: type[M], document: object) -> M:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ValueError(f"{where or 'file'}: {in_words(problem)}") from None
