"""TLS: a stream over a stream, so that it is written once for every concurrency model.

ssl.SSLSocket would read and write the socket itself, and each concurrency model would need its own variant of it.
A SecureStream encrypts and decrypts in memory instead (ssl.SSLObject). The records travel over the stream below:

    conversation ── send(plain) ─▶ SSLObject ─▶ outgoing ─▶ below.send(records) ─▶ client
    conversation ◀─ receive() ─── SSLObject ◀─ incoming ◀─ below.receive()     ◀─ client

The stream below keeps its waits, deadlines and stops. No model knows of TLS, and no accept loop waits for a
handshake: the handshake is the first thing that a conversation does (converse_securely). The price is a copy: files
are read and encrypted in Python, and the kernel cannot send them by itself.

What can go wrong:

- The client closes without saying goodbye (close_notify). For HTTP that is an end like another: Content-Length and
  chunks tell whether a body is complete.
- A client sends records without data, or key updates, without end: each costs more to process than to send.
  MAX_SILENT bounds them.
- Bytes are decrypted but not asked for yet: next_request() looks into the SSLObject before it waits below.

Source: RFC 8446. Read next: streams/base.py for what all streams promise.
"""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ewe import logger
from ewe.streams.base import RECEIVE, Disconnected, Poller, Stream, Timeout

if TYPE_CHECKING:
    from ewe.streams.bells import Bell

T = TypeVar("T")

PIECE = 64 * 1024  # bytes encrypted at once
RECORD = 16 * 1024  # bytes decrypted at once, about what a record holds
# Bytes of records without data that a client may send in a row; an honest client sends next to none.
MAX_SILENT = 4 * RECORD
MAX_PEM_BYTES = 1024 * 1024  # of a certificate or key file that OpenSSL refused; read to say why
# Of TLS 1.2: a fresh key for each connection (ECDHE, DHE), and encryption and authentication in one step (AEAD).
# CBC suites are left out: the time that their padding takes to check has leaked plain text (RFC 9325 section 4.2).
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:!aNULL:!PSK:!aDSS"
ADVICE = b"This port speaks HTTPS: use https://...\r\n"
NOT_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    % len(ADVICE)
) + ADVICE


class BadCertificate(ValueError):
    """The certificate or its key cannot be used; the text is one line."""


def server_context(certificate: str | None, key: str | None) -> ssl.SSLContext:
    """Return a context for a certificate chain and its key, both PEM files. Raises BadCertificate.

    certificate None: a self-signed one is made. TLS 1.2 and 1.3, CIPHERS, ALPN http/1.1. Sessions resume by
    tickets; workers inherit the context, and so share the tickets' keys.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    if certificate is None:
        load_self_signed(context)
        return context
    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except (OSError, ValueError) as reason:
        fault = fault_of_files(certificate, key or certificate) or f"{certificate!r}, {key!r}: {reason}"
        raise BadCertificate(f"{fault} (tls-cert, tls-key)") from None
    return context


def fault_of_files(certificate: str, key: str) -> str:
    """Return which of the two PEM files OpenSSL cannot use, and why; "" if both look right.

    OpenSSL itself says "PEM lib" of a file in another format, and does not name a file that is missing.
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
            return f"{path!r} cannot be read: {reason.strerror}"
        if label not in text:
            # DER begins with a SEQUENCE (X.690 section 8.9).
            advice = f"; openssl {command} -inform der -in FILE -out FILE.pem converts it"
            advice = advice if text[:1] == b"0" else ""
            return f"{path!r} holds no {kind} in PEM format{advice}"
    return ""


def by_name(
    choose: Callable[[str, tuple[str, int]], ssl.SSLContext], first: ssl.SSLContext
) -> ssl.SSLContext:
    """Return a context that presents the certificate of the site that a client names (SNI, RFC 6066 section 3).

    choose: return the context for a name ("" if the client names none) and the server's address. first: of a site.
    """

    def chosen(tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        tls.context = choose(name or "", tls.listens_at)  # type: ignore[union-attr]

    first.sni_callback = chosen
    return first


def no_password() -> str:
    """Raise ValueError: without this, OpenSSL would ask on the terminal for the password of the key."""
    raise ValueError("the key is encrypted, and a server cannot ask for its password")


def load_self_signed(context: ssl.SSLContext) -> None:
    """Make a certificate for localhost, valid for a year, with the openssl command. Raises BadCertificate."""
    import subprocess
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="ewe-tls-") as directory:
        key, certificate = os.path.join(directory, "key.pem"), os.path.join(directory, "cert.pem")
        command = [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", key, "-out", certificate, "-days", "365", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1",
        ]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except FileNotFoundError:
            raise BadCertificate(
                "tls = self needs the openssl command; install it, or give tls-cert"
            ) from None
        except subprocess.SubprocessError as reason:
            raise BadCertificate(f"openssl could not make a certificate: {reason}") from None
        context.load_cert_chain(certificate, key)


class SecureStream(Stream):
    """TLS over another stream, `below`."""

    scheme = "https"

    def __init__(self, below: Stream, context: ssl.SSLContext) -> None:
        self.below = below
        self.client = below.client
        self.server = below.server
        self.peer = below.peer
        self.timeouts = below.timeouts
        self.programs = below.programs
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        own = below if below.connected is None else below.connected
        self.tls.listens_at = own.server  # type: ignore[attr-defined]  # for by_name()
        self.raw = memoryview(b"")  # bytes from below that are not yet in `incoming`
        self.silent = 0  # bytes of records since the last one with data
        self.ended = False
        self.broken = False

    # The model and the server count requests, and set the others, on the stream below

    @property
    def requests(self) -> int:
        """How many requests were answered."""
        return self.below.requests

    @requests.setter
    def requests(self, count: int) -> None:
        self.below.requests = count

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        """The exchange in progress is the last."""
        return self.below.stopping

    @property
    def finishing(self) -> bool:  # type: ignore[override]
        """No exchange follows the one in progress."""
        return self.below.finishing

    @property
    def idle(self) -> bool:  # type: ignore[override]
        """The conversation is in next_request()."""
        return self.below.idle

    @property
    def aborted(self) -> bool:  # type: ignore[override]
        """The connection was ended by abort()."""
        return self.below.aborted

    async def handshake(self, seconds: float) -> bool:
        """Agree on keys within `seconds`; return whether the client did. Raises Timeout, Disconnected."""
        self.below.set_deadline(seconds)
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                if self.raw:
                    self.feed()
                    continue
                await self.flush()
                data = await self.below.receive()
                if not data:
                    return False
                self.take(data)
            except ssl.SSLError as reason:
                logger.errors.info(f"{self.client[0]}: no TLS, {reason.reason or reason}")
                if reason.reason == "HTTP_REQUEST":
                    await self.below.send(NOT_TLS)
                else:
                    await self.flush()  # the alert that says why
                await self.below.linger()
                return False
            else:
                await self.flush()
                return True

    async def flush(self) -> None:
        """Send the records that wait in `outgoing`."""
        if self.outgoing.pending:
            await self.below.send(self.outgoing.read())

    def decrypted(self) -> bytes:
        """Return the data of the records that have arrived.

        Raises Disconnected for bytes that are not TLS, and for more than MAX_SILENT bytes of records without data.
        """
        pieces: list[bytes] = []
        while True:
            count = len(pieces)
            try:
                while piece := self.tls.read(RECEIVE):
                    pieces.append(piece)
                self.ended = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                self.ended = True
            except ssl.SSLError as reason:
                if not pieces:
                    raise Disconnected(reason.reason or "") from None
                break
            if len(pieces) > count:
                self.silent = 0
            if self.ended or not self.raw:
                break
            self.silent += self.feed()
            if self.silent > MAX_SILENT:
                raise Disconnected("TLS records without data")
        return b"".join(pieces)

    def feed(self) -> int:
        """Hand the next piece of `raw` to the TLS library; return its size."""
        piece, self.raw = self.raw[:RECORD], self.raw[RECORD:]
        return self.incoming.write(piece)

    async def next_request(self, seconds: float) -> bytes:
        data = self.decrypted()
        if not data and not self.ended:
            raw = await self.below.next_request(seconds)
            self.take(raw)
            data = self.decrypted()
            if not data and not self.ended:  # part of a record: the request has begun
                self.below.set_deadline(self.timeouts.head_timeout)
                try:
                    data = await self.receive()
                except Timeout:
                    return b""
        return data

    def take(self, raw: bytes) -> None:
        """Keep bytes from below until they are decrypted; b"": the client closed without close_notify."""
        if raw:
            self.raw = memoryview(raw)
        else:
            self.ended = True

    def set_deadline(self, seconds: float) -> None:
        self.below.set_deadline(seconds)

    async def receive(self, limit: int = RECEIVE) -> bytes:
        data = self.decrypted()
        while not data and not self.ended:
            await self.flush()
            self.take(await self.below.receive())
            data = self.decrypted()
        return data

    async def send(self, *parts: bytes) -> None:
        data = memoryview(b"".join(parts) if len(parts) > 1 else parts[0])
        try:
            while data:
                self.tls.write(data[:PIECE])
                data = data[PIECE:]
                await self.flush()
        except ssl.SSLError as reason:
            raise Disconnected(reason.reason or "") from None

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        self.unsent = count
        if head:
            await self.send(head)
        while count:
            data = os.pread(file, min(count, PIECE), offset)
            if not data:
                raise Disconnected("the file has become shorter")
            await self.send(data)
            offset += len(data)
            count -= len(data)
            self.unsent = count

    async def share(self, size: int) -> None:
        await self.below.share(size)

    async def goodbye(self) -> None:
        """Send close_notify, so that the client knows that nothing was cut off (RFC 8446 section 6.1)."""
        if self.broken:
            return
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            pass  # unwrap() would wait for the client's close_notify, which we do not need
        try:
            await self.flush()
        except (Timeout, Disconnected):
            pass

    async def linger(self) -> None:
        await self.goodbye()
        await self.below.linger()

    def reset_at_close(self) -> None:
        self.broken = True
        self.below.reset_at_close()

    def bound_to(self) -> str:
        return self.below.bound_to()

    def poller(self) -> Poller:
        return self.below.poller()

    def upstream_poller(self) -> Poller:
        return self.below.upstream_poller()

    async def either(self, descriptor: int, seconds: float) -> bool:
        if self.tls.pending() or self.raw or self.ended:
            return True
        return await self.below.either(descriptor, seconds)

    def bell(self) -> Bell:
        return self.below.bell()

    async def call(
        self,
        function: Callable[..., T],
        *arguments: Any,
        seconds: float = math.inf,
        abandoned: Callable[[], None] | None = None,
    ) -> T:
        return await self.below.call(function, *arguments, seconds=seconds, abandoned=abandoned)
