"""Starts engines: opens the sockets, has suexecme start the process, and knows which process is which engine.

The main process opens both ends of an engine's sockets and hands one of each to suexecme, which gives them to the
new process. The exchange is assigned before suexecme has answered: what it writes waits in the socket until the
process reads it, so that starting and sending overlap.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import Engine, EngineState
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.fastcgi_engine import FastCGIEngine
from ewe.xswitch.switch.orders import Orders
from ewe.xswitch.switch.protocol_engine import ProtocolEngine
from ewe.xswitch.switch.shared_engine import SharedEngine

Descriptors = Sequence[socket.socket | int]


class EngineStarter:
    """Knows the engines whose process runs, by pid."""

    def __init__(self, context: Context, orders: Orders, user_of: Callable[[str], str]) -> None:
        """user_of: returns in whose turn suexecme carries out an order for a path."""
        self.context = context
        self.orders = orders
        self.user_of = user_of
        self.running: dict[int, Engine] = {}

    def start(self, exchange: Exchange) -> Engine | None:
        """Begin an engine for an exchange, and assign the exchange; None if the exchange was refused instead."""
        kind = self.context.settings.engines.get(exchange.key[1])
        if kind is None:
            exchange.fail(500, f"there is no engine {exchange.key[1]} any more")
            return None
        try:
            make = self.protocol_engine if kind.protocol == "engine" else self.fastcgi_engine
            engine, given = make(exchange, kind)
        except OSError as reason:
            exchange.fail(503, f"no sockets for an engine: {reason.strerror}")
            return None

        def started(answer: dict[str, Any]) -> None:
            if "pid" in answer:
                engine.pid = answer["pid"]
                self.running[engine.pid] = engine
                if engine.state is EngineState.CLOSED:
                    self.kill(engine.pid)
            elif engine.state is not EngineState.CLOSED:
                engine.start_refused(answer["status"], answer["refused"])

        # Assigned before the order is sent: once it is, the listening socket belongs to the new process.
        engine.assign(exchange)
        order = {"order": "start", "path": exchange.script, "uid": exchange.uid, "engine": kind.name}
        self.orders.ask(
            self.user_of(exchange.script),
            order,
            started,
            given,
            lambda: engine.state is not EngineState.CLOSED,
        )
        # CLOSED: its first connection failed, and the exchange knows that.
        return None if engine.state is EngineState.CLOSED else engine

    def protocol_engine(self, exchange: Exchange, kind: EngineKind) -> tuple[Engine, Descriptors]:
        """Return our end of an engine that speaks the engine protocol, and the descriptors of the engine's end."""
        data, its_data = socket.socketpair()
        control, its_control = socket.socketpair()
        errors, its_errors = os.pipe2(os.O_CLOEXEC)
        engine = ProtocolEngine(self.context, exchange.key, data, control, errors)
        return engine, (its_data, its_errors, its_control)

    def fastcgi_engine(self, exchange: Exchange, kind: EngineKind) -> tuple[Engine, Descriptors]:
        """Return our end of an engine that speaks FastCGI, and the descriptors of the engine's end.

        The engine is given a listening socket, to which we connect. Its name is in a directory that only we may
        enter, and is removed at once, so that no other process can connect.
        """
        listener = socket.socket(socket.AF_UNIX)
        data = socket.socket(socket.AF_UNIX)
        errors, its_errors = os.pipe2(os.O_CLOEXEC)
        try:
            with tempfile.TemporaryDirectory(prefix="xswitch-", ignore_cleanup_errors=True) as directory:
                path = os.path.join(directory, "engine")
                listener.bind(path)
                listener.listen(kind.connections)
                data.connect(path)
                door = os.open(path, os.O_PATH | os.O_CLOEXEC) if kind.connections > 1 else -1
        except OSError:
            listener.close()
            data.close()
            os.close(errors)
            os.close(its_errors)
            raise
        engine: Engine
        if kind.connections > 1:
            engine = SharedEngine(self.context, exchange.key, data, errors, door, kind.connections)
        else:
            engine = FastCGIEngine(self.context, exchange.key, data, errors)
        return engine, (listener, its_errors)

    def kill(self, pid: int) -> None:
        """Have suexecme kill an engine's process, and all that it has left behind."""
        self.running.pop(pid, None)
        self.orders.kill_engine(pid)

    def process_ended(self, pid: int, status: int) -> None:
        """Tell an engine that its process has ended."""
        if (engine := self.running.pop(pid, None)) is not None:
            engine.process_ended(status)
