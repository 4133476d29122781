"""TLS: a stream over another stream, so that TLS is written once for every concurrency model.

ssl.SSLSocket would read and write the socket itself, and each concurrency model would need its own variant of it.
A SecureStream encrypts and decrypts in memory instead (ssl.SSLObject). The stream below carries the TLS records:

    conversation ── send(plain) ─▶ SSLObject ─▶ outgoing ─▶ below.send(records) ─▶ client
    conversation ◀─ receive() ─── SSLObject ◀─ incoming ◀─ below.receive()     ◀─ client

Waits, deadlines and stops are those of the stream below. No model knows about TLS, and no accept loop waits for a
handshake: each conversation begins with the handshake (converse_securely). The price is a copy: Python reads and
encrypts files, and sendfile(2) cannot be used.

Possible failures, and where each is prevented:

- The client closes the connection without close_notify. For HTTP this does no harm: Content-Length, or the last
  chunk, shows whether a body is complete.
- A client sends an endless series of records without data, or of key updates. Each costs more to process than to
  send. MAX_SILENT_BYTES bounds them.
- The SSLObject has decrypted bytes that no call has taken yet. next_request() therefore asks the SSLObject before
  it waits for the stream below.

Source: RFC 8446. Read next: streams/base.py, which lists the promises of all streams.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ewe import logger
from ewe.config.pem import fault_of_files, no_password
from ewe.streams.base import RECEIVE_BYTES, Disconnected, Timeout
from ewe.streams.over import StreamOver
from ewe.timeouts import count_timeout

if TYPE_CHECKING:
    from ewe.streams.base import Stream

PIECE_BYTES = 64 * 1024  # bytes encrypted at once
RECORD_BYTES = 16 * 1024  # bytes decrypted at once, about the size of a record
# Bytes of records without data that a client may send in a row. Normal clients send almost none.
MAX_SILENT_BYTES = 4 * RECORD_BYTES
# For TLS 1.2: a new key for each connection (ECDHE, DHE), and encryption and authentication in one step (AEAD).
# CBC suites are excluded: the time that the check of their padding takes has leaked plain text (RFC 9325 section
# 4.2).
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:!aNULL:!PSK:!aDSS"
ADVICE = b"This port speaks HTTPS: use https://...\r\n"
NOT_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    % len(ADVICE)
) + ADVICE


class BadCertificate(ValueError):
    """The certificate or its key cannot be used. The text is one line."""


def server_context(certificate: str | None, key: str | None) -> ssl.SSLContext:
    """Return a context for a certificate chain and its key, both PEM files. Raises BadCertificate.

    certificate: None makes a self-signed one. The context allows TLS 1.2 and 1.3, CIPHERS, and ALPN http/1.1.
    Sessions resume by tickets. Workers inherit the context, and so share the tickets' keys.
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


def by_name(
    choose: Callable[[str, tuple[str, int]], ssl.SSLContext], first: ssl.SSLContext
) -> ssl.SSLContext:
    """Return a context that presents the certificate of the site that a client names (SNI, RFC 6066 section 3).

    choose: a function that returns the context for a name ("" if the client sends none) and the server's address.
    first: the context of any site; the callback is set on it, and it is returned.
    """

    def chosen(tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        tls.context = choose(name or "", tls.listens_at)  # type: ignore[union-attr]

    first.sni_callback = chosen
    return first


def load_self_signed(context: ssl.SSLContext) -> None:
    """Make a certificate for localhost with the openssl command, valid for a year. Raises BadCertificate."""
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
        except (OSError, subprocess.SubprocessError) as reason:
            raise BadCertificate(f"openssl could not make a certificate: {reason}") from None
        context.load_cert_chain(certificate, key)


class SecureStream(StreamOver):
    """TLS over another stream, `below`."""

    scheme = "https"

    def __init__(
        self, below: Stream, context: ssl.SSLContext, listens_at: tuple[str, int] | None = None
    ) -> None:
        """listens_at: the (address, port) of the listening socket, for by_name(); None: below.server."""
        super().__init__(below)
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.tls.listens_at = listens_at or below.server  # type: ignore[attr-defined]
        self.encrypted: bytes | memoryview = b""  # bytes from below that are not yet in `incoming`
        self.decrypted = b""  # bytes that either() has decrypted, for the next receive()
        self.fault: str | None = None  # why TLS has failed, "" for an unknown reason; None: it has not
        self.silent_bytes = 0  # the bytes of all records since the last one with data: see MAX_SILENT_BYTES
        self.client_ended = False
        self.resets = False  # the end is a reset: no close_notify may make the response look complete

    async def handshake(self, seconds: float) -> bool:
        """Do the TLS handshake within `seconds`; return whether it succeeded. Raises Timeout, Disconnected.

        A connection without a byte is idle: a stop does not wait for it, and a pool parks it.
        """
        began = time.monotonic()
        if not self.encrypted:
            self.below.in_handshake = True
            try:
                self.keep_encrypted(await self.below.next_request(seconds))
            finally:
                self.below.in_handshake = False
            if self.client_ended:
                return False
        self.below.set_deadline(max(began + seconds - time.monotonic(), 0.001))
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                if self.encrypted:
                    self.feed()
                    continue
                await self.flush()
                data = await self.below.receive()
                if not data:
                    return False
                self.keep_encrypted(data)
            except ssl.SSLError as reason:
                logger.errors.info(f"{self.client[0]}: no TLS, {reason.reason or reason}")
                if reason.reason == "HTTP_REQUEST":
                    await self.below.send(NOT_TLS)
                else:
                    await self.flush()  # sends the TLS alert, which contains the reason
                await self.below.linger()
                return False
            else:
                await self.flush()
                return True

    async def flush(self) -> None:
        """Send the records that wait in `outgoing`."""
        if self.outgoing.pending:
            await self.below.send(self.outgoing.read())

    def decrypt(self) -> bytes:
        """Return the data of the records that have arrived.

        Raises Disconnected for bytes that are not TLS, and for more than MAX_SILENT_BYTES of records without data.
        Data before such bytes is returned first, and the next call raises.
        """
        data, self.decrypted = self.decrypted, b""
        if self.fault is not None:
            if data:
                return data
            raise Disconnected(self.fault)
        pieces = [data] if data else []
        while True:
            count = len(pieces)
            self.silent_bytes += self.feed()
            try:
                # Reading on until the library wants more would raise an exception for each request, which costs as
                # much as the decryption. No byte waits in the library if both counts are 0.
                while self.incoming.pending or self.tls.pending():
                    if not (piece := self.tls.read(RECEIVE_BYTES)):
                        self.client_ended = True
                        break
                    pieces.append(piece)
            except ssl.SSLWantReadError:
                pass  # a part of a record
            except ssl.SSLZeroReturnError:
                self.client_ended = True
            except ssl.SSLError as reason:
                self.fault = reason.reason or ""
                if not pieces:
                    raise Disconnected(self.fault) from None
                break
            if len(pieces) > count:
                self.silent_bytes = 0
            elif self.silent_bytes > MAX_SILENT_BYTES:
                self.fault = "TLS records without data"
                raise Disconnected(self.fault)
            if self.client_ended or not self.encrypted:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def feed(self) -> int:
        """Hand the next piece of `encrypted` to the TLS library; return its size."""
        piece = self.encrypted
        if len(piece) <= RECORD_BYTES:
            self.encrypted = b""
        else:
            piece, self.encrypted = piece[:RECORD_BYTES], piece[RECORD_BYTES:]
        return self.incoming.write(piece) if piece else 0

    async def next_request(self, seconds: float) -> bytes:
        """Return the decrypted bytes of the next request; b"" if none come within `seconds`, or at a stop.

        If only a part of a TLS record comes within `seconds`, the rest must come within head-timeout. Raises
        Disconnected.
        """
        data = self.decrypt()
        if not data and not self.client_ended:
            encrypted = await self.below.next_request(seconds)
            self.keep_encrypted(encrypted)
            data = self.decrypt()
            if not data and not self.client_ended:  # part of a record: the request has begun
                self.below.set_deadline(self.timeouts.head_timeout)
                try:
                    data = await self.receive()
                except Timeout:
                    count_timeout("head")
                    return b""
        return data

    def keep_encrypted(self, data: bytes) -> None:
        """Keep bytes from below until they are decrypted. b"": the client closed without close_notify."""
        if data:
            self.encrypted = data if len(data) <= RECORD_BYTES else memoryview(data)
        else:
            self.client_ended = True

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        """Return the next decrypted bytes; b"" at the end. `limit` is ignored. Raises Timeout, Disconnected."""
        data = self.decrypt()
        while not data and not self.client_ended:
            await self.flush()
            self.keep_encrypted(await self.below.receive())
            data = self.decrypt()
        return data

    async def send(self, *parts: bytes) -> None:
        """Encrypt and send all parts, PIECE_BYTES at a time, so that few encrypted bytes wait in memory."""
        data: bytes | memoryview = b"".join(parts) if len(parts) > 1 else parts[0]
        try:
            if len(data) > PIECE_BYTES:
                data = memoryview(data)
                while len(data) > PIECE_BYTES:
                    self.tls.write(data[:PIECE_BYTES])
                    data = data[PIECE_BYTES:]
                    await self.flush()
            if data:
                self.tls.write(data)
                await self.flush()
        except ssl.SSLError as reason:
            self.fault = reason.reason or ""
            raise Disconnected(self.fault) from None

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        """Read, encrypt and send `head` and a part of a file: sendfile(2) cannot encrypt. Raises Timeout,
        Disconnected.
        """
        await self.send_copy(file, offset, count, head)

    async def send_close_notify(self) -> None:
        """Send close_notify, so that the client knows that it has received all bytes (RFC 8446 section 6.1)."""
        if self.resets:
            return
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            pass  # unwrap() would wait for the client's close_notify, which we do not need
        try:
            await self.flush()
        except (Timeout, Disconnected):
            pass

    def has_client(self) -> bool:
        return self.fault is None and not self.client_ended and self.below.has_client()

    async def linger(self) -> None:
        """Send close_notify and close our side; then read and drop bytes, LINGER_S at most."""
        await self.send_close_notify()
        await self.below.linger()

    def reset_at_close(self) -> None:
        """Make close() send a reset, and no close_notify before it."""
        self.resets = True
        self.below.reset_at_close()

    async def either(self, descriptor: int, seconds: float) -> bool:
        """Return True once the client has sent data or ended its side, False once the upstream can be read.

        A part of a record, and a record without data, do not end the wait: receive() would wait for more bytes of
        the client, and nothing would read from the upstream meanwhile.
        Raises Timeout after `seconds`, Disconnected.
        """
        ends = time.monotonic() + seconds
        self.decrypted = self.decrypt()
        while not self.decrypted and not self.client_ended:
            await self.flush()
            if not await self.below.either(descriptor, max(ends - time.monotonic(), 0)):
                return False
            self.below.set_deadline(seconds)  # the bytes have arrived: receive() may wait for its turn only
            self.keep_encrypted(await self.below.receive())
            self.decrypted = self.decrypt()
        return True
