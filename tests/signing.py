"""Keys and signed deliveries of tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from solstice_common.broker.headers import SIGNATURE_HEADER
from solstice_common.broker.protocol import Delivered
from solstice_common.messages import JobCancelV1, JobRequestV1, Source
from solstice_common.signing.jws import sign
from solstice_common.signing.key_file import change_public, write_private
from solstice_common.signing.keys import KeyScope, Right, SigningKey, VerifyKey, new_key, parse_private

EVERYWHERE = KeyScope(sources=frozenset(Source), repositories=("**",), rights=frozenset(Right))


class KeyPair:
    """A private key and its public one."""

    def __init__(self, name: str = "forge", scope: KeyScope = EVERYWHERE) -> None:
        self.verify, self.text = new_key(name, scope, now="2026-11-01T00:00:00Z")
        self.signing: SigningKey = parse_private(self.text.encode())[0]

    @property
    def known(self) -> Mapping[str, VerifyKey]:
        """The key as VERIFY_KEYS would have it."""
        return {self.verify.name: self.verify}

    def write(self, directory: Path) -> Path:
        """Write the private key to a file; returns its path."""
        path = directory / f"{self.verify.name}.json"
        write_private(path, self.text)
        return path

    def publish(self, path: Path) -> None:
        """Add the public key to the file."""
        change_public(path, lambda keys: [*keys, self.verify])

    def signed(self, message: JobRequestV1 | JobCancelV1, **changes: Any) -> Delivered:
        """The message as a delivery that this key signed."""
        body = message.encode()
        return delivered(body, sign([body], message.VERSION, self.signing)[0], **changes)


def delivered(body: bytes, signature: object = None, **changes: Any) -> Delivered:
    """A delivery with this signature; without one, unsigned."""
    headers = {} if signature is None else {SIGNATURE_HEADER: signature}
    return Delivered(**{"body": body, "tag": 1, "headers": headers, **changes})
