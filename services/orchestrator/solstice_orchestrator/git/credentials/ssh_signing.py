"""Answers what ssh asks of an agent that has one deploy key. Pure.

Source: draft-ietf-sshm-ssh-agent (messages), RFC 4252 section 7 (what is signed), RFC 8332 (RSA with SHA-2).
"""

from base64 import b64decode
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

FAILURE: Final = b"\x05"
LIST: Final = 11
IDENTITIES: Final = b"\x0c"
SIGN: Final = 13
SIGNATURE: Final = b"\x0e"
USERAUTH: Final = 50
SHA256: Final = 2
SHA512: Final = 4
_METHODS: Final = frozenset({b"publickey", b"publickey-hostbound-v00@openssh.com"})

DeployKey = ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSigner:
    """Signs in to SSH servers as one user, and signs nothing else."""

    key: DeployKey = field(repr=False)
    user: str

    @property
    def public_line(self) -> str:
        """The public key, as in a file of authorized keys."""
        encoding = serialization.Encoding.OpenSSH
        return self.key.public_key().public_bytes(encoding, serialization.PublicFormat.OpenSSH).decode()

    @property
    def _blob(self) -> bytes:
        return b64decode(self.public_line.split(" ")[1])

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message of the agent protocol."""
        if message[:1] == bytes([LIST]):
            return IDENTITIES + (1).to_bytes(4) + _string(self._blob) + _string(b"deploy key")
        if message[:1] != bytes([SIGN]):
            return FAILURE
        try:
            blob, rest = _read(message[1:])
            data, flags = _read(rest)
            if blob != self._blob or not self._signs_in(data):
                return FAILURE
            return SIGNATURE + _string(self._signature(data, int.from_bytes(flags)))
        except ValueError:
            return FAILURE

    def _signs_in(self, data: bytes) -> bool:
        _, rest = _read(data)
        if rest[:1] != bytes([USERAUTH]):
            return False
        user, rest = _read(rest[1:])
        service, rest = _read(rest)
        method, _ = _read(rest)
        return user == self.user.encode() and service == b"ssh-connection" and method in _METHODS

    def _signature(self, data: bytes, flags: int) -> bytes:
        match self.key:
            case ed25519.Ed25519PrivateKey():
                return _string(b"ssh-ed25519") + _string(self.key.sign(data))
            case rsa.RSAPrivateKey() if flags & (SHA256 | SHA512):
                digest = hashes.SHA512() if flags & SHA512 else hashes.SHA256()
                name = b"rsa-sha2-512" if flags & SHA512 else b"rsa-sha2-256"
                return _string(name) + _string(self.key.sign(data, padding.PKCS1v15(), digest))
            case ec.EllipticCurvePrivateKey():
                size = self.key.curve.key_size
                hashed = {256: hashes.SHA256, 384: hashes.SHA384}.get(size, hashes.SHA512)()
                pair = decode_dss_signature(self.key.sign(data, ec.ECDSA(hashed)))
                name = f"ecdsa-sha2-nistp{size}".encode()
                return _string(name) + _string(b"".join(_string(_integer(number)) for number in pair))
        raise ValueError("a signature with SHA-1 is asked for")


def deploy_key(text: str) -> DeployKey:
    """Read a private key without a passphrase.

    ValueError, which never contains the text, for anything else.
    """
    problem = "must be a private key without a passphrase, of the kind Ed25519, ECDSA or RSA"
    load = (
        serialization.load_ssh_private_key if "BEGIN OPENSSH" in text else serialization.load_pem_private_key
    )
    try:
        key = load(f"{text.strip()}\n".encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(problem) from None
    if not isinstance(key, DeployKey):
        raise ValueError(problem)  # noqa: TRY004  the file is wrong, not the program
    return key


def _string(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content


def _integer(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1)


def _read(data: bytes) -> tuple[bytes, bytes]:
    """Return the first string of the data, and the rest."""
    size = int.from_bytes(data[:4])
    if len(data) < size + 4:
        raise ValueError("the message is cut off")
    return data[4 : 4 + size], data[4 + size :]
