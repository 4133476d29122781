"""Starts engines: opens the sockets, makes suexecme start the process, and maps each pid to its engine.

The main process opens both ends of an engine's sockets and sends one of each pair to suexecme, which passes them to
the new process. The exchange is assigned before suexecme has answered. Its bytes wait in the socket until the
process reads them. Starting and sending therefore overlap.
"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import CLOSED, Engine
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.fastcgi_engine import FastCGIEngine
from ewe.xswitch.switch.orders import Orders
from ewe.xswitch.switch.protocol_engine import ProtocolEngine
from ewe.xswitch.switch.scheduler import Key
from ewe.xswitch.switch.shared_engine import SharedEngine

Descriptors = Sequence[socket.socket | int]
# The end of an engine frees its descriptors at once, but its memory (ENOMEM) only after its process has ended: one
# request would end all idle engines, and still be refused
NO_DESCRIPTORS = errno.EMFILE, errno.ENFILE


class EngineStarter:
    """Starts engines, and maps the pid of each running process to its engine."""

    def __init__(self, context: Context, orders: Orders) -> None:
        self.context = context
        self.orders = orders
        self.engine_by_pid: dict[int, Engine] = {}

    def start(self, exchange: Exchange) -> Engine | None:
        """Start an engine for an exchange, assign the exchange to the engine, and return the engine.

        Return None if there is no engine for the scheduler to keep. The exchange has then failed, or, if the new
        engine has failed, has asked the scheduler for another one (Exchange.engine_failed).
        """
        _, language = exchange.key
        kind = self.context.settings.engines.get(language)
        if kind is None:
            exchange.fail(500, f"there is no engine {language} any more")
            return None
        while True:
            try:
                engine, engine_descriptors = self.open_engine(exchange.key, kind)
                break
            except OSError as reason:
                # Idle engines have descriptors, too. Without this, a user could be refused until they end (idle)
                if reason.errno in NO_DESCRIPTORS and self.context.scheduler.evict(lambda engine: True):
                    continue
                exchange.fail(503, f"cannot make sockets for an engine: {reason.strerror}")
                return None
        # Assign first: a SharedEngine then connects to the listening socket. order_process() closes the main
        # process's copy of that socket.
        engine.assign(exchange)
        self.order_process(engine, engine_descriptors, exchange.script, exchange.uid)
        # CLOSED: assign() could not connect, or could not write the request
        return None if engine.state is CLOSED else engine

    def start_idle(self, key: Key, kind: EngineKind, script: str, uid: int) -> Engine | None:
        """Have suexecme start an engine for later requests; return it. None if no sockets are left.

        script: one that the engine's user may run. suexecme starts the process for its owner.
        """
        try:
            engine, engine_descriptors = self.open_engine(key, kind)
        except OSError:
            return None
        engine.script = script
        self.order_process(engine, engine_descriptors, script, uid)
        return engine

    def open_engine(self, key: Key, kind: EngineKind) -> tuple[Engine, Descriptors]:
        """Open the main process's end of an engine; return it with the descriptors for the engine's process.

        Raises OSError.
        """
        open_sockets = self.protocol_engine if kind.protocol == "engine" else self.fastcgi_engine
        engine, engine_descriptors = open_sockets(key, kind)
        if self.context.trace is not None:
            self.context.trace.engine_begins(engine)
        return engine, engine_descriptors

    def order_process(self, engine: Engine, engine_descriptors: Descriptors, script: str, uid: int) -> None:
        """Make suexecme start the process of an engine. script, uid: a script that it may run, and its owner."""
        trace = self.context.trace

        def started(answer: dict[str, Any]) -> None:
            """Note the pid that suexecme has answered, or close the engine if suexecme has refused."""
            if "pid" in answer:
                engine.pid = answer["pid"]
                self.engine_by_pid[engine.pid] = engine
                if trace is not None:
                    trace.process_runs(engine)
                if engine.state is CLOSED:  # it was closed while suexecme started its process
                    self.kill(engine.pid)
            elif engine.state is not CLOSED:
                engine.start_refused(answer["status"], answer["refused"])

        order = {"order": "start", "path": script, "uid": uid, "engine": engine.language}
        self.orders.ask(
            self.context.settings.home_in(script),
            order,
            on_answer=started,
            descriptors_to_pass=engine_descriptors,
            is_wanted=lambda: engine.state is not CLOSED,
        )

    def protocol_engine(self, key: Key, kind: EngineKind) -> tuple[Engine, Descriptors]:
        """Return the main process's end of an engine of the engine protocol, and the engine's descriptors."""
        data, engine_data = socket.socketpair()
        control, engine_control = socket.socketpair()
        error_pipe, engine_errors = os.pipe2(os.O_CLOEXEC)
        engine = ProtocolEngine(self.context, key, data, control, error_pipe)
        return engine, (engine_data, engine_errors, engine_control)

    def fastcgi_engine(self, key: Key, kind: EngineKind) -> tuple[Engine, Descriptors]:
        """Return the main process's end of a FastCGI engine, and the descriptors for the engine's process.

        The engine gets a listening socket, to which the main process connects. The socket's name is in a directory
        that only the main process's user may enter. It is removed at once: no other process can connect. If the
        engine runs several requests at once, a descriptor of the socket's file stays, for further connections.
        """
        listener = socket.socket(socket.AF_UNIX)
        data = socket.socket(socket.AF_UNIX)
        error_pipe, engine_errors = os.pipe2(os.O_CLOEXEC)
        try:
            directory = tempfile.mkdtemp(prefix="xswitch-")
            path = os.path.join(directory, "engine")
            try:
                listener.bind(path)
                # A connection that is closed before the engine accepts it stays in the backlog
                listener.listen(socket.SOMAXCONN)
                data.connect(path)
                listener_descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC) if kind.connections > 1 else -1
            finally:
                # By their names: to read the directory would take a descriptor, and none may be left
                for remove, name in ((os.unlink, path), (os.rmdir, directory)):
                    with suppress(OSError):
                        remove(name)
        except OSError:
            listener.close()
            data.close()
            os.close(error_pipe)
            os.close(engine_errors)
            raise
        engine: Engine
        if kind.connections > 1:
            engine = SharedEngine(self.context, key, data, error_pipe, listener_descriptor, kind.connections)
        else:
            engine = FastCGIEngine(self.context, key, data, error_pipe)
        return engine, (listener, engine_errors)

    def kill(self, pid: int) -> None:
        """Make suexecme kill an engine's process, and its leftover processes."""
        self.engine_by_pid.pop(pid, None)
        self.orders.kill_engine(pid)

    def process_ended(self, pid: int, status: int, cause: str) -> None:
        """Tell an engine that its process has ended. cause: why the kernel has killed it; "": it has not."""
        if (engine := self.engine_by_pid.pop(pid, None)) is not None:
            if cause:
                self.context.log_for_user(engine.user, f"{engine.script}: {cause}")
            engine.process_ended(status)
