"""The gateways of the demon: what is known of each connection, and the bounds that hold for all of them together.

Every account of the machine can reach the demon's socket, and on TCP every program that reaches the port. What a
peer can take before it has shown that it may ask is therefore bounded, and so is what an account that may ask takes
from the others:

    an account that may use no database     is told so and closed when it connects: the kernel says who it is
    a peer on TCP without a right key       UNPROVEN bytes of a request, and BEGUN_S seconds
    a request that has begun                is whole within BEGUN_S
    the bytes of all requests together      HELD; the account that holds most loses its longest request
    connections                             most_gateways(); the account that has most loses one

The last two bounds are not numbers for each account: one that is alone may use them all, and one that comes later
still finds room. The demon keeps descriptors for itself, so it never fails to accept, open a database or start a
process.
"""

from __future__ import annotations

import hmac
import resource
import time
from collections import Counter
from collections.abc import Container, Iterator

from ewe.bounded import BoundedDict
from ewe.database.lines import Acceptor, Line
from ewe.database.protocol import Decoder, ProtocolError, leading_fields
from ewe.database.settings import DatabaseSettings, Settings

BEGUN_S = (
    10.0  # in which a request that has begun must be whole, and a peer on TCP must have shown a right key
)
UNPROVEN = 4096  # bytes of a request on TCP before the key that it names has been found right
HELD = 64 << 20  # bytes of requests that are not answered yet, of all gateways together
RESERVE = 64  # descriptors that are kept for the demon itself
LEAST = 16  # connections that there may be however few descriptors the system gives


class Gateway:
    """A connection of a gateway. uid: of its process; None on TCP.

    busy: its request waits or runs. muted: epoll does not report what it sends meanwhile. left: its connection is
    of no use any more. proven: its account is known, or it has given a right key. asked: bytes of the request that
    waits or runs. held: bytes that the demon counts for it. heard: when it last sent something.
    """

    def __init__(self, line: Line, acceptor: Acceptor) -> None:
        self.line = line
        self.acceptor = acceptor
        self.decoder = Decoder()
        self.uid = line.uid
        self.who = line.who
        self.busy = False
        self.muted = False
        self.left = False
        self.proven = line.uid is not None
        self.asked = 0
        self.held = 0
        self.heard = time.monotonic()

    @property
    def account(self) -> tuple[int | None, bool]:
        """Return whose connection it is. All peers on TCP are one account, and those without a key another."""
        return self.uid, self.proven

    def feed(self, data: bytes, settings: Settings) -> None:
        """Take what has arrived. Raises ProtocolError."""
        self.heard = time.monotonic()
        self.decoder.feed(data)
        length = self.decoder.length()
        if not self.proven and length is not None and length > UNPROVEN:
            database, key = leading_fields(self.decoder.data)
            own = settings.databases.get(database)
            if own is not None and self.has_key(own, key):
                self.proven = True
            elif key or len(self.decoder.data) >= UNPROVEN:
                raise ProtocolError(
                    f"a frame of {length} bytes without a right key: above {UNPROVEN}, database and key stand first"
                )

    def may_use(self, database: DatabaseSettings, accounts: Container[int], key: str) -> bool:
        """Return whether the gateway may use a database: its account is among these, or on TCP it has the key."""
        if self.uid is None:
            right = self.has_key(database, key)
            self.proven = self.proven or right
            return right
        return self.uid in accounts

    def has_key(self, database: DatabaseSettings, key: str) -> bool:
        """Return whether this is the key of a database."""
        return bool(database.key) and hmac.compare_digest(database.key.encode(), key.encode())


class Gateways:
    """All connections, by descriptor, and the bounds of them."""

    def __init__(self) -> None:
        self.by_descriptor: dict[int, Gateway] = {}
        self.held = 0
        self.begun: dict[Gateway, float] = {}  # requests that are not whole, by their age: since when

    def __len__(self) -> int:
        return len(self.by_descriptor)

    def add(self, gateway: Gateway) -> None:
        """Take a new connection."""
        self.by_descriptor[gateway.line.fileno()] = gateway
        self.note(gateway)

    def remove(self, gateway: Gateway) -> bool:
        """Forget a connection; return whether it was there."""
        if self.by_descriptor.get(gateway.line.fileno()) is not gateway:
            return False
        del self.by_descriptor[gateway.line.fileno()]
        self.begun.pop(gateway, None)
        self.held -= gateway.held
        gateway.held = 0
        return True

    def note(self, gateway: Gateway) -> None:
        """Note what a connection holds now, and whether a request of it has begun."""
        if self.by_descriptor.get(gateway.line.fileno()) is not gateway:
            return
        held = len(gateway.decoder.data) + gateway.asked
        self.held += held - gateway.held
        gateway.held = held
        if not gateway.busy and (gateway.decoder.data or not gateway.proven):
            self.begun.setdefault(gateway, time.monotonic())
        else:
            self.begun.pop(gateway, None)

    def late(self, now: float) -> Iterator[Gateway]:
        """Yield the connections whose request is not whole in time; each must be removed."""
        while self.begun:
            gateway, since = next(iter(self.begun.items()))
            if now - since < BEGUN_S:
                return
            yield gateway

    def surplus(self) -> Iterator[tuple[Gateway, str]]:
        """Yield connections to close, so that the bounds hold, and why; each must be removed."""
        while len(self) > (most := most_gateways()):
            account, count = Counter(each.account for each in self.by_descriptor.values()).most_common(1)[0]
            its = [each for each in self.by_descriptor.values() if each.account == account]
            yield min(its, key=lambda each: (each.busy, each.heard)), f"{count} of {most} connections are its"
        while self.held > HELD:
            sums: Counter[tuple[int | None, bool]] = Counter()
            for each in self.by_descriptor.values():
                sums[each.account] += each.held
            account, count = sums.most_common(1)[0]
            its = [each for each in self.by_descriptor.values() if each.account == account]
            yield max(its, key=lambda each: each.held), f"its requests hold {count >> 20} MB of {HELD >> 20}"


def most_gateways() -> int:
    """Return how many connections there may be: the descriptors of the process, but for RESERVE."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(LEAST, soft - RESERVE) if soft != resource.RLIM_INFINITY else 1 << 20


class Complaints:
    """The log of what peers do wrong: BURST lines for each account in WINDOW_S seconds, then their number."""

    WINDOW_S = 10.0
    BURST = 10
    MAX_ACCOUNTS = 1000

    def __init__(self) -> None:
        self.counts: BoundedDict[int | None, tuple[float, int]] = BoundedDict(self.MAX_ACCOUNTS)

    def words(self, uid: int | None, message: str) -> str:
        """Return the line to write, "" for none."""
        now = time.monotonic()
        since, count = self.counts.get(uid, (now, 0))
        left_out = 0
        if now - since > self.WINDOW_S:
            since, count, left_out = now, 0, max(count - self.BURST, 0)
        self.counts[uid] = (since, count + 1)
        if count >= self.BURST:
            return ""
        return f"{message} ({left_out} such lines were left out)" if left_out else message
