"""The gateways of the daemon: the state of each connection, and the limits for all connections together.

Every account of the machine can connect to the daemon's Unix socket, and every program that reaches the port can
connect over TCP. A peer that has not shown its right to ask may use only limited resources. An account with that
right must not take all resources from the others:

    an account that may use no database     gets an error and is closed when it connects: the kernel tells its uid
    a peer on TCP without a right key       MAX_UNPROVEN_BYTES of a request, and REQUEST_TIMEOUT_S
    a request that has begun                must be complete within REQUEST_TIMEOUT_S
    the bytes of all requests together      MAX_UNANSWERED_BYTES; the account with most bytes loses a request
    descriptors of connections              max_descriptors(); the account with most descriptors loses a connection

The last two limits are not numbers for each account: a single account may use all resources, and a later one still
finds room. A connection by a socket has one descriptor, and one by pipes or queues has two. The daemon reserves
descriptors for itself, and one for each statement process, so it can always accept, open a database or start a
process.
"""

from __future__ import annotations

import hmac
import resource
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator

from ewe.bounded import BoundedDict
from ewe.database.acceptors import Acceptor, GatewayConnection
from ewe.database.protocol import FrameDecoder, ProtocolError, database_and_key
from ewe.database.settings import DatabaseSettings, Settings

# Seconds after which a request that has begun must be complete, and a peer on TCP must have sent a right key
REQUEST_TIMEOUT_S = 10.0
MAX_UNPROVEN_BYTES = 4096  # of a request on TCP that the daemon reads before it has checked the key
MAX_UNANSWERED_BYTES = 64 << 20  # of requests that are not answered yet, of all gateways together
RESERVED_DESCRIPTORS = 64  # descriptors that are kept for the daemon itself
MAX_DESCRIPTORS = 1 << 20  # descriptors of connections, if the system sets no limit
MIN_DESCRIPTORS = 16  # descriptors of connections that are allowed even if the system gives few

# The owner of connections: a uid, None on TCP; and whether it has proved its account, or given a right key
Account = tuple[int | None, bool]


class Gateway:
    """A connection of a gateway. uid: of its process; None on TCP.

    is_busy: its request waits or runs. is_muted: epoll does not report its bytes meanwhile. has_left: its
    connection cannot be used any more. is_authenticated: its account is known, or it has given a right key.
    request_bytes: the size of the request that waits or runs. unanswered_bytes: the sum of request_bytes and the
    bytes received after it. last_received_at: when it last sent bytes (time.monotonic()).
    """

    def __init__(self, connection: GatewayConnection, acceptor: Acceptor) -> None:
        """acceptor: accepted the connection."""
        self.connection = connection
        self.acceptor = acceptor
        self.decoder = FrameDecoder()
        self.uid = connection.uid
        self.peer_name = connection.peer_name
        self.is_busy = False
        self.is_muted = False
        self.has_left = False
        self.is_authenticated = connection.uid is not None
        self.request_bytes = 0
        self.unanswered_bytes = 0
        self.last_received_at = time.monotonic()

    @property
    def account(self) -> Account:
        """Return the owner of the connection. All peers on TCP are one account; those without a key are another."""
        return self.uid, self.is_authenticated

    def feed(self, data: bytes, settings: Settings) -> None:
        """Take the bytes that have arrived. Raises ProtocolError.

        A peer whose account is not known must begin a long request with a right key (is_authenticated). If no key
        is among the first MAX_UNPROVEN_BYTES of the request, the peer is refused.
        """
        self.last_received_at = time.monotonic()
        self.decoder.feed(data)
        length = self.decoder.first_frame_length()
        if not self.is_authenticated and length is not None and length > MAX_UNPROVEN_BYTES:
            database, key = database_and_key(self.decoder.data)  # "": it has not arrived
            database_settings = settings.databases.get(database)
            if database_settings is not None and self.has_key(database_settings, key):
                self.is_authenticated = True
            elif key or len(self.decoder.data) >= MAX_UNPROVEN_BYTES:
                raise ProtocolError(
                    f"a frame of {length} bytes needs a right key: a frame above {MAX_UNPROVEN_BYTES} bytes"
                    " begins with the fields database and key"
                )

    def may_use(self, database: DatabaseSettings, accounts: Container[int], key: str) -> bool:
        """Return whether the gateway may use a database: its account may, or on TCP it has the key.

        A right key is noted in is_authenticated. accounts: the uids that may use the database.
        """
        if self.uid is None:
            has_right = self.has_key(database, key)
            self.is_authenticated = self.is_authenticated or has_right
            return has_right
        return self.uid in accounts

    def has_key(self, database: DatabaseSettings, key: str) -> bool:
        """Return whether this is the key of a database."""
        return bool(database.key) and hmac.compare_digest(database.key.encode(), key.encode())


class Gateways:
    """All connections, by descriptor, and their limits."""

    def __init__(self) -> None:
        self.by_descriptor: dict[int, Gateway] = {}
        self.descriptor_count = 0  # of all connections together
        self.process_count = 0  # statement processes: the daemon has one descriptor for each
        self.unanswered_bytes = 0
        # A gateway with an incomplete request, or without a proof of its account -> the monotonic time since when;
        # the oldest first
        self.incomplete_since: dict[Gateway, float] = {}

    def __len__(self) -> int:
        return len(self.by_descriptor)

    def add(self, gateway: Gateway) -> None:
        """Add a new connection."""
        self.by_descriptor[gateway.connection.fileno()] = gateway
        self.descriptor_count += gateway.connection.descriptor_count
        self.update(gateway)

    def remove(self, gateway: Gateway) -> bool:
        """Remove a connection; return whether it was there."""
        if self.by_descriptor.get(gateway.connection.fileno()) is not gateway:
            return False
        del self.by_descriptor[gateway.connection.fileno()]
        self.descriptor_count -= gateway.connection.descriptor_count
        self.incomplete_since.pop(gateway, None)
        self.unanswered_bytes -= gateway.unanswered_bytes
        gateway.unanswered_bytes = 0
        return True

    def update(self, gateway: Gateway) -> None:
        """Update unanswered_bytes and incomplete_since for a connection."""
        if self.by_descriptor.get(gateway.connection.fileno()) is not gateway:
            return
        unanswered_bytes = (
            len(gateway.decoder.data) + gateway.request_bytes + gateway.connection.received_bytes()
        )
        self.unanswered_bytes += unanswered_bytes - gateway.unanswered_bytes
        gateway.unanswered_bytes = unanswered_bytes
        if not gateway.is_busy and (gateway.decoder.data or not gateway.is_authenticated):
            self.incomplete_since.setdefault(gateway, time.monotonic())
        else:
            self.incomplete_since.pop(gateway, None)

    def overdue_gateways(self, now: float) -> Iterator[Gateway]:
        """Yield the gateways whose request is incomplete after REQUEST_TIMEOUT_S; the caller must remove each."""
        while self.incomplete_since:
            gateway, began_at = next(iter(self.incomplete_since.items()))
            if now - began_at < REQUEST_TIMEOUT_S:
                return
            yield gateway

    def connections_to_close(self) -> Iterator[tuple[Gateway, str]]:
        """Yield each connection that must be closed to keep the limits, and the reason for the log.

        The caller must remove each: the loops end when the limits are kept.
        """
        while self.descriptor_count > (limit := max_descriptors(self.process_count)):
            gateways, count = self.largest_account(lambda gateway: gateway.connection.descriptor_count)
            # An idle connection rather than a busy one, then the one that sent nothing for the longest time
            oldest = min(gateways, key=lambda gateway: (gateway.is_busy, gateway.last_received_at))
            yield oldest, f"its account has {count} of the {limit} descriptors for connections"
        while self.unanswered_bytes > MAX_UNANSWERED_BYTES:
            gateways, count = self.largest_account(lambda gateway: gateway.unanswered_bytes)
            longest = max(gateways, key=lambda gateway: gateway.unanswered_bytes)
            yield (
                longest,
                f"the requests of its account take {count >> 20} of {MAX_UNANSWERED_BYTES >> 20} MB",
            )

    def largest_account(self, size_of: Callable[[Gateway], int]) -> tuple[list[Gateway], int]:
        """Return the connections of the account with the largest sum of `size_of`, and this sum."""
        sums: Counter[Account] = Counter()
        for gateway in self.by_descriptor.values():
            sums[gateway.account] += size_of(gateway)
        [(largest, total)] = sums.most_common(1)
        return [gateway for gateway in self.by_descriptor.values() if gateway.account == largest], total


def max_descriptors(process_count: int) -> int:
    """Return how many descriptors all connections together may have: this process's limit, less its own needs.

    It needs RESERVED_DESCRIPTORS, and one descriptor for each of `process_count` statement processes.
    """
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS
    return max(MIN_DESCRIPTORS, soft_limit - RESERVED_DESCRIPTORS - process_count)


class LogRateLimit:
    """Limits the log lines about faulty peers: BURST lines for each account in WINDOW_S seconds.

    The first line of the next window says how many were left out.
    """

    WINDOW_S = 10.0
    BURST = 10
    MAX_ACCOUNTS = 1000

    def __init__(self) -> None:
        self.counts: BoundedDict[int | None, tuple[float, int]] = BoundedDict(self.MAX_ACCOUNTS)

    def line_to_log(self, uid: int | None, message: str) -> str:
        """Count a message about an account; return the line to log, "" if the account has had BURST lines."""
        now = time.monotonic()
        began_at, count = self.counts.get(uid, (now, 0))  # the account's present window
        omitted_count = 0
        if now - began_at > self.WINDOW_S:
            began_at, count, omitted_count = now, 0, max(count - self.BURST, 0)
        self.counts[uid] = (began_at, count + 1)
        if count >= self.BURST:
            return ""
        return f"{message} ({omitted_count} such lines were left out)" if omitted_count else message
