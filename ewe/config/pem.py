"""Files with a certificate or a key in PEM format (RFC 7468): what is wrong with them, in a line."""

from __future__ import annotations

MAX_PEM_BYTES = 1024 * 1024  # read of a certificate or key file


def fault_of_files(certificate: str, key: str) -> str:
    """Return which of the two PEM files OpenSSL cannot use, and why; "" if both look right.

    OpenSSL's own message is only "PEM lib" for a file in another format, and it does not name a missing file.
    """
    for path, label, kind, command in (
        (certificate, b"CERTIFICATE-----", "certificate", "x509"),
        (key, b"PRIVATE KEY-----", "private key", "pkey"),
    ):
        try:
            with open(path, "rb") as file:
                text = file.read(MAX_PEM_BYTES)
        except FileNotFoundError:
            return f"{path!r} is not there"
        except OSError as reason:
            return f"cannot read {path!r}: {reason.strerror}"
        if label not in text:
            # A DER file begins with "0", the tag of a SEQUENCE (X.690 section 8.9).
            advice = f"; openssl {command} -inform der -in FILE -out FILE.pem converts it"
            advice = advice if text[:1] == b"0" else ""
            return f"{path!r} holds no {kind} in PEM format{advice}"
    return ""


def no_password() -> str:
    """Raise ValueError. Without this callback, OpenSSL would ask for the key's password on the terminal."""
    raise ValueError(
        "the key is encrypted, and a server cannot ask for its password;"
        " openssl pkey -in FILE -out FILE.pem decrypts it"
    )
