"""Certificates for trials of TLS with both sides authenticated, made by the commands of docs/xswitch.md."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY = ("-newkey", "ed25519", "-nodes")


class Authority:
    """A CA in a directory, which signs certificates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.pem"
        openssl(
            "req", "-x509", *KEY, "-days", "30", "-subj", "/CN=X-Switch CA",
            "-keyout", directory / "ca.key", "-out", self.certificate,
        )  # fmt: skip

    def sign(
        self, name: str, address: str = "127.0.0.1", usage: str = "", days: int = 30
    ) -> tuple[Path, Path]:
        """Return the certificate and the key of a machine. usage: its extendedKeyUsage."""
        key, request, certificate = (self.directory / f"{name}.{end}" for end in ("key", "csr", "pem"))
        more = ("-addext", f"extendedKeyUsage={usage}") if usage else ()
        names = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{address}")
        openssl("req", *KEY, *names, *more, "-keyout", key, "-out", request)
        openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.directory / "ca.key",
            "-days", days, "-copy_extensions", "copy", "-out", certificate,
        )  # fmt: skip
        return certificate, key


def openssl(*words: object) -> None:
    """Run a command of OpenSSL."""
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=30)


@contextmanager
def authority() -> Iterator[Authority]:
    """Make a CA for a block."""
    with tempfile.TemporaryDirectory(prefix="ewe-ca-") as directory:
        yield Authority(Path(directory))


def tls_settings(authority: Authority, name: str, trusted: Path | None = None, **options: str) -> str:
    """Return the settings of an X-Switch with a new certificate. trusted: instead of the CA's."""
    certificate, key = authority.sign(name, **options)  # type: ignore[arg-type]
    return f'tls-cert = "{certificate}"\ntls-key = "{key}"\ntls-ca = "{trusted or authority.certificate}"\n'
