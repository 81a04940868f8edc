"""Makes certificates for servers of the tests."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

NEW_KEY: Final = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
"""Options of openssl-req(1) for a key that is made at once; one of RSA takes a tenth of a second or two."""


def certificate_for_loopback(directory: Path) -> Path:
    """A certificate for 127.0.0.1 that signed itself, in one file with its key."""
    key, made, both = directory / "key.pem", directory / "certificate.pem", directory / "both.pem"
    command = f"openssl req -x509 {NEW_KEY} -days 2 -subj /CN=localhost -keyout {key} -out {made}"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    both.write_text(key.read_text() + made.read_text())
    return both


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority, and what it signs, as files of PEM in one directory."""

    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.pem"

    def sign(
        self, name: str, alternatives: str = "IP:127.0.0.1", *, expired: bool = False
    ) -> tuple[Path, Path]:
        """A certificate with this common name, and its key; the same for the same words."""
        stem = f"{name}-{crc32(f'{alternatives} {expired}'.encode()):x}"
        key, request, made = (self.directory / f"{stem}.{kind}" for kind in ("key", "csr", "pem"))
        if made.exists():
            return made, key
        names = self.directory / f"{stem}.names"
        names.write_text(f"subjectAltName={alternatives}")
        self._openssl(f"req {NEW_KEY} -subj /CN={name} -keyout {key} -out {request}")
        if expired:
            self._sign_long_ago(request, names, made)
        else:
            self._openssl(
                f"x509 -req -in {request} -CA {self.certificate} -CAkey {self.directory}/ca.key "
                f"-CAcreateserial -days 2 -extfile {names} -out {made}"
            )
        for path in (key, made):
            # A server that runs as another user reads them.
            path.chmod(0o644)
        return made, key

    def _sign_long_ago(self, request: Path, names: Path, made: Path) -> None:
        """`openssl x509` cannot date back; `openssl ca` can."""
        (self.directory / "new").mkdir(exist_ok=True)
        (self.directory / "index").write_text("")
        (self.directory / "serial").write_text("1001\n")
        configuration = self.directory / "ca.conf"
        configuration.write_text(
            f"[ca]\ndefault_ca=own\n[own]\ndir={self.directory}\ndatabase=$dir/index\nserial=$dir/serial\n"
            f"new_certs_dir=$dir/new\ncertificate={self.certificate}\nprivate_key=$dir/ca.key\n"
            "default_md=sha256\npolicy=any\nunique_subject=no\n[any]\ncommonName=supplied\n"
        )
        self._openssl(
            f"ca -batch -config {configuration} -in {request} -out {made} -notext -extfile {names} "
            "-startdate 20200101000000Z -enddate 20200201000000Z"
        )

    def _openssl(self, words: str) -> None:
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)


def authority(directory: Path) -> Authority:
    """A new authority in a directory of its own."""
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    command = f"openssl req -x509 {NEW_KEY} -days 2 -subj /CN={directory.name} -keyout {directory}/ca.key -out {directory}/ca.pem"
    subprocess.run(command.split(), check=True, capture_output=True)
    (directory / "ca.pem").chmod(0o644)
    return Authority(directory)
