"""The certificate, the key and the trusted certificates of an X-Switch that speaks TLS with another one.

    supervisor (root)    read_certificates(): the text of the three files, and their faults
          | Settings.certificates, in memory
    main process         contexts(): what a connection needs, made of the text

The supervisor reads the files, because only root may read the key, and reads them again at HUP. The main process
gets their text with its settings. A renewed certificate therefore needs neither a restart nor a key that the
account of the main process may read.

Both ends show a certificate, and each checks the other's against `tls-ca`. That file has the certificate of a CA,
or the peers' own certificates (pinned). The end that connects also compares the peer's address with the
certificate's subjectAltName.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import replace
from typing import NamedTuple

from ewe.config.messages import ConfigError
from ewe.config.pem import MAX_PEM_BYTES, fault_of_files, no_password
from ewe.xswitch.setting_types import OVER_TLS
from ewe.xswitch.settings import Settings

KEY_MODES = 0o027  # permissions that a key may not give: writing to the group, any to others


class Contexts(NamedTuple):
    """The contexts of the end that is connected to, and of the end that connects."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def read_certificates(settings: Settings) -> Settings:
    """Return settings with the text of the three files, if any setting needs TLS. Raises ConfigError."""
    far = [kind.name for kind in settings.engines.values() if kind.address]
    over_tls = [address for address in settings.listen if address.startswith(OVER_TLS)]
    if not far and not over_tls:
        return settings
    user = f"[engines.{far[0]}] address" if far else f"listen {over_tls[0]}"
    files = {"tls-cert": settings.tls_cert, "tls-key": settings.tls_key, "tls-ca": settings.tls_ca}
    for key, path in files.items():
        if not path:
            raise ConfigError(f"{key} is missing: {user} needs tls-cert, tls-key and tls-ca")
    texts = tuple(read_pem(key, path) for key, path in files.items())
    fault = fault_of_files(settings.tls_cert, settings.tls_key) or fault_of_files(
        settings.tls_ca, settings.tls_key
    )
    if fault:
        raise ConfigError(f"{fault} (tls-cert, tls-key, tls-ca)")
    with_texts = replace(settings, certificates=texts)
    try:
        contexts(with_texts)
    except (OSError, ValueError) as reason:
        raise ConfigError(
            f"tls-cert {settings.tls_cert}, tls-key {settings.tls_key}, tls-ca {settings.tls_ca}: {reason}"
        ) from None
    return with_texts


def read_pem(key: str, path: str) -> str:
    """Return the text of a file. key: the setting that names it. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(MAX_PEM_BYTES + 1)
    except OSError as reason:
        raise ConfigError(f"cannot read {path}: {reason.strerror} ({key})") from None
    if len(text) > MAX_PEM_BYTES:
        raise ConfigError(f"{path} has more than {MAX_PEM_BYTES} bytes ({key})")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"{path} belongs to uid {status.st_uid}, who may change it: chown root {path} ({key})"
        )
    forbidden = KEY_MODES if key == "tls-key" else 0o022
    if status.st_mode & forbidden:
        what = "readable or writable" if key == "tls-key" else "writable"
        mode = f"mode {status.st_mode & 0o7777:04o}"
        advice = "go-rwx" if key == "tls-key" else "go-w"
        raise ConfigError(f"{path} is {what} by others ({mode}): chmod {advice} {path} ({key})")
    return text.decode("ascii", "ignore")


def contexts(settings: Settings) -> Contexts | None:
    """Return the contexts; None if no setting needs TLS. Raises OSError, ValueError."""
    if not settings.certificates:
        return None
    certificate, key, trusted = settings.certificates
    sides = [ssl.SSLContext(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)]
    for context in sides:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a pinned certificate need not be a CA's
        context.load_verify_locations(cadata=trusted)
        load_chain(context, certificate, key)
    server, client = sides
    server.num_tickets = 0  # a connection is kept, so none resumes a session
    return Contexts(server, client)


def load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate and its key from their text. OpenSSL reads files, so they become an unnamed one."""
    descriptor = os.memfd_create("xswitch-certificate", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "w", encoding="ascii", closefd=False) as file:
            file.write(f"{certificate}\n{key}\n")
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=no_password)
    finally:
        os.close(descriptor)
