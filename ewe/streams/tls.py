"""TLS: a stream over a stream, so that it is written once for every concurrency model.

A SecureStream encrypts into and decrypts out of memory (ssl.SSLObject); the bytes travel over the stream below
it, whose waits, deadlines and stops stay what they are. So no model knows of TLS, and no accept loop waits for
a handshake. The price is a copy: files are read and encrypted, not sent by the kernel.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ewe import logger
from ewe.streams import RECEIVE, Disconnected, Stream, Timeout

if TYPE_CHECKING:
    from ewe.programs import Program, ProgramWaits

PIECE = 64 * 1024  # bytes encrypted at once
NOT_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 40\r\nConnection: close\r\n\r\n"
    b"This port speaks HTTPS: use https://...\r\n"
)


class BadCertificate(ValueError):
    """The certificate or its key cannot be used; the text is one line."""


def server_context(certificate: str | None, key: str | None) -> ssl.SSLContext:
    """Return the context for a certificate chain and its key, PEM files; None: one made on the spot.

    TLS 1.2 and 1.3, the library's own choice of ciphers, ALPN http/1.1; sessions resume by tickets, whose
    keys all workers share. Raises BadCertificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    if certificate is None:
        load_self_signed(context)
        return context
    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except FileNotFoundError:
        missing = certificate if not os.path.exists(certificate) else key
        raise BadCertificate(f"{missing!r} is not there (tls-cert, tls-key)") from None
    except (OSError, ValueError) as reason:
        raise BadCertificate(f"{certificate!r}, {key!r}: {reason} (tls-cert, tls-key)") from None
    return context


def no_password() -> str:
    """Refuse to ask on the terminal for the password of a key."""
    raise ValueError("the key is encrypted, and a server cannot ask for its password")


def load_self_signed(context: ssl.SSLContext) -> None:
    """Make a certificate for localhost, good for a year, with the openssl command. Raises BadCertificate."""
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
    """TLS over another stream."""

    scheme = "https"

    def __init__(self, below: Stream, context: ssl.SSLContext) -> None:
        self.below = below
        self.client = below.client
        self.server = below.server
        self.timeouts = below.timeouts
        self.programs = below.programs
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.ended = False
        self.broken = False

    # What others count and ask is the stream's below

    @property
    def requests(self) -> int:
        """Answered so far."""
        return self.below.requests

    @requests.setter
    def requests(self, count: int) -> None:
        self.below.requests = count

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        """The exchange in progress is the last."""
        return self.below.stopping

    async def handshake(self, seconds: float) -> bool:
        """Agree on keys within so many seconds; False if the client will not. Raises Timeout, Disconnected."""
        self.below.allow(seconds)
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                data = await self.below.receive()
                if not data:
                    return False
                self.incoming.write(data)
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
        """Send what was encrypted."""
        if self.outgoing.pending:
            await self.below.send(self.outgoing.read())

    def decrypted(self) -> bytes:
        """Return what can be decrypted of what came. Raises Disconnected for what is no TLS."""
        pieces: list[bytes] = []
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
                raise Disconnected(str(reason.reason)) from None
        return b"".join(pieces)

    async def next_request(self, idle: float) -> bytes:
        data = self.decrypted()
        if not data and not self.ended:
            raw = await self.below.next_request(idle)
            self.take(raw)
            data = self.decrypted()
            if not data and not self.ended:  # part of a record: now it has begun
                self.below.allow(self.timeouts.head_timeout)
                try:
                    data = await self.receive()
                except Timeout:
                    return b""
        return data

    def take(self, raw: bytes) -> None:
        """Take what came from below; its end without a goodbye is an end as well."""
        if raw:
            self.incoming.write(raw)
        else:
            self.ended = True

    def allow(self, seconds: float) -> None:
        self.below.allow(seconds)

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
            raise Disconnected(str(reason.reason)) from None

    async def send_file(self, file: int, offset: int, count: int, head: bytes = b"") -> None:
        if head:
            await self.send(head)
        while count:
            data = os.pread(file, min(count, PIECE), offset)
            if not data:
                raise Disconnected("the file has become shorter")
            await self.send(data)
            offset += len(data)
            count -= len(data)

    async def goodbye(self) -> None:
        """Say close_notify, so that the client knows that nothing was cut (RFC 8446 section 6.1)."""
        if self.broken:
            return
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            pass  # it waits for the client's own, which we do not need
        try:
            await self.flush()
        except (Timeout, Disconnected):
            pass

    async def linger(self) -> None:
        await self.goodbye()
        await self.below.linger()

    def break_off(self) -> None:
        self.broken = True
        self.below.break_off()

    async def spawn(
        self,
        command: Sequence[str | bytes],
        environment: Mapping[bytes, bytes],
        directory: str,
        stdin: int,
        name: str,
    ) -> Program:
        return await self.below.spawn(command, environment, directory, stdin, name)

    def program_waits(self) -> ProgramWaits:
        return self.below.program_waits()
