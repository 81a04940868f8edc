"""Signs in to GitHub as an App, and asks for tokens of its installations. Pure.

Source: docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app (a JWT of at most ten minutes, its
clock a minute in the past; a token of an hour, narrowed by `repositories` and `permissions`).
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from solstice_common.errors import ConfigurationError

JWT_SECONDS: Final = 540
CLOCK_SECONDS: Final = 60
"""How far GitHub's clock may be behind ours."""
SPARE_SECONDS: Final = 300.0
"""A token is not used in its last minutes, because a call may take a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppToken:
    """A token of an installation, and when it expires."""

    token: str = field(repr=False)
    expires_at: float


def token_request(repository: str, permissions: Mapping[str, str]) -> Mapping[str, object]:
    """Return the body that asks for a token for one repository."""
    return {"repositories": [repository.rpartition("/")[2]], "permissions": dict(permissions)}


def read_token(document: Any) -> AppToken:
    """Return the token in an answer of GitHub; KeyError, TypeError or ValueError without one."""
    token = document["token"]
    if not isinstance(token, str) or not token or not token.isprintable():
        raise ValueError("no token")
    return AppToken(token=token, expires_at=datetime.fromisoformat(document["expires_at"]).timestamp())


def signing_key(pem: str) -> rsa.RSAPrivateKey:
    """Return the App's key; ConfigurationError, without any of the key, when it is invalid."""
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            "the private key of a GitHub App cannot be read: it must be the PEM file that GitHub gave, unencrypted"
        ) from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ConfigurationError("the private key of a GitHub App must be an RSA key")
    return key


def jwt(app_id: int, key: rsa.RSAPrivateKey, now: float) -> str:
    """Return the token with which an App signs in (RFC 7519, RS256)."""
    claims = {"iat": int(now) - CLOCK_SECONDS, "exp": int(now) + JWT_SECONDS, "iss": str(app_id)}
    signed = f"{_segment({'alg': 'RS256', 'typ': 'JWT'})}.{_segment(claims)}"
    return f"{signed}.{_base64(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _segment(fields: Mapping[str, object]) -> str:
    return _base64(orjson.dumps(dict(fields)))


def _base64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()
