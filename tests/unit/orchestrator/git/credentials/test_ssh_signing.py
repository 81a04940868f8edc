"""The agent signs in as one user with one key, and signs nothing else."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from solstice_orchestrator.git.credentials.ssh_signing import FAILURE, SIGNATURE, SshSigner, deploy_key

KEY = ed25519.Ed25519PrivateKey.generate()
SIGNER = SshSigner(key=KEY, user="git")


def string(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content


def blob(signer: SshSigner = SIGNER) -> bytes:
    listed = signer.answer(b"\x0b")
    size = int.from_bytes(listed[5:9])
    return listed[9 : 9 + size]


def signing_in(
    user: bytes = b"git", service: bytes = b"ssh-connection", method: bytes = b"publickey"
) -> bytes:
    return string(b"session") + b"\x32" + string(user) + string(service) + string(method) + b"\x01"


def sign(data: bytes, key: bytes | None = None, flags: int = 0, signer: SshSigner = SIGNER) -> bytes:
    return signer.answer(b"\x0d" + string(key or blob(signer)) + string(data) + flags.to_bytes(4))


def test_a_sign_in_of_the_user_is_signed() -> None:
    answer = sign(signing_in())
    assert answer[:1] == SIGNATURE
    KEY.public_key().verify(answer[-64:], signing_in())


@pytest.mark.parametrize(
    "data",
    [
        signing_in(user=b"root"),
        signing_in(service=b"other"),
        signing_in(method=b"hostbased"),
        b"SSHSIG" + string(b"git"),
        b"tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904",
        string(b"session"),
        b"",
    ],
)
def test_anything_else_is_not_signed(data: bytes) -> None:
    assert sign(data) == FAILURE


def test_another_key_and_other_messages_are_refused() -> None:
    assert sign(signing_in(), key=b"other") == FAILURE
    for message in (
        b"",
        b"\x11",
        b"\x0d",
        b"\x0d\xff\xff\xff\xff",
        b"\x1b" + string(b"session-bind@openssh.com"),
    ):
        assert SIGNER.answer(message) == FAILURE


def test_rsa_signs_with_sha_2_alone() -> None:
    signer = SshSigner(key=rsa.generate_private_key(public_exponent=65537, key_size=2048), user="git")
    assert sign(signing_in(), signer=signer) == FAILURE
    assert b"rsa-sha2-256" in sign(signing_in(), flags=2, signer=signer)
    assert b"rsa-sha2-512" in sign(signing_in(), flags=4, signer=signer)


@pytest.mark.parametrize("text", ["", "plaNted", "-----BEGIN OPENSSH PRIVATE KEY-----\nplaNted\n"])
def test_an_unusable_key_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="without a passphrase") as caught:
        deploy_key(text)
    assert "plaNted" not in str(caught.value)


def test_a_key_with_a_passphrase_is_refused() -> None:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    text = KEY.private_bytes(encoding, form, serialization.BestAvailableEncryption(b"open sesame")).decode()
    with pytest.raises(ValueError, match="without a passphrase"):
        deploy_key(text)
