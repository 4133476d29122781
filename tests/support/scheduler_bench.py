"""X-Switch's scheduler without processes: requests and engines that only note what happens to them."""

from __future__ import annotations

from ewe.xswitch.settings import Settings
from ewe.xswitch.switch.resources import MachineReading
from ewe.xswitch.switch.scheduler import Key, Scheduler
from ewe.xswitch.user_limits import NO_LIMITS


class Request:
    def __init__(self, user: str, language: str = "python", queued_at: float = 0.0) -> None:
        self.user = user
        self.key: Key = (user, language)
        self.limits = NO_LIMITS
        self.queued_at = queued_at
        self.refused = 0
        self.engine: Engine | None = None

    def refuse(self, status: int, cause: str) -> None:
        self.refused = status


class Engine:
    def __init__(self, bench: Bench, key: Key) -> None:
        self.bench = bench
        self.key = key
        self.user, self.language = key
        self.used_at = 0.0
        self.deadline = float("inf")
        self.ended_requests = 0
        self.request: Request | None = None
        self.retired = False
        self.bytes = 0
        self.busy = False
        self.broken = False

    def assign(self, exchange: Request) -> None:
        assert (
            isinstance(exchange, Request)
            and self.request is None
            and not self.retired
            and exchange.key == self.key
        )
        if self.broken:
            self.retired = True
            self.bench.scheduler.engine_lost(self)
            exchange.refuse(502, "")
            return
        self.request = exchange
        exchange.engine = self
        self.deadline = self.bench.now + 10
        self.bench.order.append(exchange)

    def done(self) -> None:
        self.request = None
        self.ended_requests += 1
        self.deadline = float("inf")
        self.bench.now += 1
        self.used_at = self.bench.now
        self.bench.scheduler.release(self)

    def running_count(self) -> int:
        return int(self.request is not None)

    def expire(self) -> None:
        assert self.request is not None
        self.request.refuse(504, "")
        self.request = None
        self.retired = True
        self.bench.scheduler.engine_lost(self)

    def close(self) -> None:
        assert self.request is None
        self.retired = True

    def memory_bytes(self) -> int:
        return self.bytes

    def check_spinning(self) -> bool:
        return self.busy


class Bench:
    """A scheduler, its clock, and the order in which requests got engines."""

    def __init__(self, **settings: int) -> None:
        self.now = 0.0
        self.order: list[Request] = []
        self.reading = MachineReading()
        self.said: list[str] = []
        self.scheduler = Scheduler(
            Settings(**settings),  # type: ignore[arg-type]
            self.start,
            lambda: self.reading,
            lambda level, message: self.said.append(message),
        )

    def start(self, exchange: Request) -> Engine:
        engine = Engine(self, exchange.key)
        engine.assign(exchange)
        return engine

    def ask(self, user: str, language: str = "python") -> Request:
        request = Request(user, language, self.now)
        request.limits = self.scheduler.limits.limits_of(user)
        self.scheduler.submit(request)
        return request

    def busy(self) -> list[Engine]:
        return [
            engine
            for engine in self.scheduler.engines
            if isinstance(engine, Engine) and engine.request is not None
        ]


def end_of(request: Request) -> None:
    assert request.engine is not None
    request.engine.done()
