"""The main process: one event loop between web servers, which speak FastCGI, and engines. It has no privileges.

This file puts the parts together and passes each request on. To read how one request goes, follow it through them:

    listening               a web server connects
    web_server_connection   FastCGI records become a request: Switch.begin() makes its exchange
    identify                suexecme says whose script it is; its answers are remembered for 2 seconds
    scheduler               an idle engine is found, or a new one is started, or the exchange waits for its turn
    engine_starter          suexecme starts a process as the script's owner
    engine                  the request is written to the engine, and the response read
    exchange                the response goes back to the web server; every failure is handled here

orders.py carries what is asked of suexecme. If suexecme ends or hangs, this process ends too: the supervisor
starts both again, and connections wait in the backlog meanwhile.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from ewe.config.defaults import WEB_INF, XSWITCH_STATUS_PATH
from ewe.logger import ErrorLog
from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.protocol import ProtocolError
from ewe.xswitch.settings import Settings, read_copy
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import Engine
from ewe.xswitch.switch.engine_starter import EngineStarter
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import DONE, HAS_ENGINE, IDENTIFYING
from ewe.xswitch.switch.identify import (
    Answer,
    Identified,
    Identifier,
    RefusedScript,
    script_file,
    script_path,
    signature_of,
)
from ewe.xswitch.switch.listening import Listeners
from ewe.xswitch.switch.loop import Loop
from ewe.xswitch.switch.orders import Orders
from ewe.xswitch.switch.response_head import NO_ENGINE
from ewe.xswitch.switch.scheduler import Scheduler
from ewe.xswitch.switch.status import collect, may_see_status, render
from ewe.xswitch.switch.web_server_connection import WebServerConnection
from ewe.xswitch.webapp import Applications, NoApplication

TICK_SECONDS = 0.1  # between two checks of what takes too long
GRACE_SECONDS = 10.0  # that requests have to end at a stop
FAREWELL_SECONDS = 0.05  # for what is being written when suexecme is gone
MAX_MEASURED = 1000  # engines whose memory the status shows: a message has no room for more
STATUS_URL = XSWITCH_STATUS_PATH.encode()
MAX_PATH_BYTES = 4096  # of a path, its final NUL included: Linux's PATH_MAX


class Switch:
    """The parts of the main process, and what passes between them and suexecme."""

    def __init__(self, settings: Settings, orders: socket.socket, log: ErrorLog) -> None:
        """orders: to suexecme."""
        self.log = log
        self.loop = Loop(self.on_fault)
        self.orders = Orders(orders, settings, self.loop)
        # Scheduler and context come first: the starter, which both call, is made of the context.
        self.scheduler: Scheduler[Exchange, Engine] = Scheduler(
            settings, lambda exchange: self.starter.start(exchange)
        )
        self.context = Context(settings, self.loop, log, self.scheduler, lambda pid: self.starter.kill(pid))
        self.identifier = Identifier(self.context, self.orders)
        self.starter = EngineStarter(self.context, self.orders, self.identifier.user_of)
        self.applications = Applications()
        self.listeners = Listeners(self.loop, log, self.connected)
        self.connections: set[WebServerConnection] = set()
        self.since = time.monotonic()
        self.failed = False
        self.loop.add_reader(orders, self.on_orders)
        self.loop.call_later(TICK_SECONDS, self.tick)

    # A request

    def connected(self, sock: socket.socket) -> None:
        """Serve a web server's connection."""
        connection = WebServerConnection(self.context, sock, self.begin, self.connections.discard)
        self.connections.add(connection)

    def begin(
        self, client: WebServerConnection, params: dict[bytes, bytes], body: Sequence[bytes]
    ) -> Exchange:
        """Start a request: find its script, then the script's owner.

        body: the pieces received so far; b"" marks the end.
        """
        self.context.counters["requests"] += 1
        if STATUS_URL in (
            params.get(b"SCRIPT_NAME", b"") + params.get(b"PATH_INFO", b""),
            params.get(b"DOCUMENT_URI"),
        ):
            return self.begin_status(client, params)
        file = script_file(params)
        try:
            application = self.applications.find(file, params, self.context.settings)
        except NoApplication as reason:
            exchange = Exchange(client, self.context, params, file)
            exchange.fail(reason.status, str(reason))
            return exchange
        if application is not None:
            path = f"{application.directory}/{WEB_INF}"
            signature = signature_of(path)
        else:
            path, signature = script_path(file, params)
        exchange = Exchange(client, self.context, params, path)
        exchange.application = application
        if exchange.body_left < 0:
            exchange.fail(400, "CONTENT_LENGTH is no number")
        for piece in body:
            if exchange.state is not DONE:
                exchange.body_arrived(piece)
        if exchange.state is DONE:
            return exchange
        if not path:
            exchange.fail(400, "SCRIPT_FILENAME is missing: the web server must send it")
        elif len(os.fsencode(path)) >= MAX_PATH_BYTES:
            exchange.fail(404, "no script: its path is too long")
        elif self.context.stopping:
            exchange.fail(503, "stopping")
        else:
            self.identifier.identify(path, signature, lambda answer: self.identified(exchange, answer))
        return exchange

    def identified(self, exchange: Exchange, answer: Answer) -> None:
        """Give an exchange to the scheduler, now that suexecme has said whose script it is."""
        if exchange.state is not IDENTIFYING:
            return  # the client has left meanwhile
        if isinstance(answer, RefusedScript):
            exchange.user = answer.user
            exchange.fail(answer.status, answer.reason)
            return
        exchange.user, exchange.uid = answer.user, answer.uid
        kind = self.kind_for(exchange, answer)
        if kind is None:
            cause = "no engine for it: neither its directory, its extension nor its first line names one"
            exchange.fail(500, cause, NO_ENGINE)
            return
        exchange.script, exchange.own = answer.path, answer.variables
        if exchange.application is not None:
            exchange.application = exchange.application.at(os.path.dirname(answer.path))
        exchange.key = (answer.user, kind.name)
        try:
            if kind.protocol == "engine":
                exchange.make_lines()
        except ProtocolError as error:
            exchange.fail(431, str(error))
            return
        exchange.identified()

    def kind_for(self, exchange: Exchange, answer: Identified) -> EngineKind | None:
        """Return the engine for a script; the web server may name it, as the paper's mod_x does."""
        named = exchange.params.get(b"XSWITCH_ENGINE")
        if named:
            return self.context.settings.engines.get(named.decode("latin-1"))
        return answer.kind

    def begin_status(self, client: WebServerConnection, params: dict[bytes, bytes]) -> Exchange:
        """Start a request for the status, which suexecme completes: only root may read every engine's memory."""
        exchange = Exchange(client, self.context, params, XSWITCH_STATUS_PATH)
        if not may_see_status(params, self.context.settings):
            exchange.fail(404, "shown over a loopback address, if status = true in X-Switch's settings")
            return exchange

        def measured(answer: dict[str, Any]) -> None:
            if exchange.state is IDENTIFYING:
                status = collect(self.scheduler, len(self.connections), self.since, answer.get("memory", {}))
                exchange.answer(render(status, params))

        self.orders.ask("", {"order": "measure", "pids": list(self.starter.running)[:MAX_MEASURED]}, measured)
        return exchange

    # suexecme

    def on_orders(self) -> None:
        """Read what suexecme says."""
        while True:
            try:
                received = channel.receive(self.orders.socket)
            except BlockingIOError:
                return
            except OSError:
                received = None
            if received is None:
                self.fall("suexecme has gone", 502)
                return
            self.handle_message(*received)

    def handle_message(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Act on one message."""
        if "settings" in message or "log" in message:
            [descriptor] = descriptors
            if "log" in message:
                os.dup2(descriptor, 2)
            else:
                self.change_settings(read_copy(descriptor))
            os.close(descriptor)
            return
        for descriptor in descriptors:
            self.context.user_logs.take(message["user"], descriptor)
        if "ended" in message:
            self.starter.process_ended(message["ended"], message["status"])
        else:
            self.orders.answered(message)

    def change_settings(self, settings: Settings) -> None:
        """Use other settings. Idle engines whose kind has changed end; busy ones stay, and are used again."""
        before = self.context.settings
        self.context.change_settings(settings)
        self.orders.settings = settings
        self.identifier.clear()
        for engine in [engine for engines in self.scheduler.idle.values() for engine in engines]:
            language = engine.key[1]
            if settings.engines.get(language) != before.engines.get(language):
                self.scheduler.end(engine)

    def fall(self, cause: str, status: int) -> None:
        """End, since suexecme is gone or hangs: all exchanges get an error, and all engines end.

        The supervisor starts both processes again.
        """
        self.loop.remove_reader(self.orders.socket)
        self.listeners.stop()
        self.log.error(f"{cause}; both processes start again")
        self.context.stopping = self.failed = True
        # Scheduled before all else: no fault in what follows may keep this process alive.
        self.loop.call_later(FAREWELL_SECONDS, self.loop.stop)
        # The exchanges without an engine end before the others: the scheduler must not start one for them.
        for connection in list(self.connections):
            exchange = connection.exchange
            if exchange is not None and exchange.state not in HAS_ENGINE:
                exchange.fail(status, cause)
        self.orders.give_up()
        for engine in list(self.scheduler.engines):
            engine.fail(cause)

    # Time, faults, the end

    def tick(self) -> None:
        """Check what takes too long."""
        self.loop.call_later(TICK_SECONDS, self.tick)
        now = time.monotonic()
        if not self.orders.tick(now) and not self.failed:
            self.fall("suexecme does not answer", 503)
        self.scheduler.tick(now)
        for connection in [connection for connection in self.connections if connection.is_overdue(now)]:
            connection.close()

    def on_fault(self, fault: Exception) -> None:
        """Log a mistake in our own code, which the event loop has caught."""
        self.log.exception("fault in the main module")

    def stop(self) -> None:
        """Take no more requests; end when the running ones have ended, or after GRACE_SECONDS."""
        self.context.stopping = True
        self.listeners.stop()
        for connection in list(self.connections):
            if connection.exchange is None:
                (connection.leave if connection.outbox.pending else connection.close)()
        self.end_with_the_last(time.monotonic() + GRACE_SECONDS)

    def end_with_the_last(self, until: float) -> None:
        """Stop the loop once all connections are closed."""
        if self.connections and time.monotonic() < until:
            self.loop.call_later(0.02, self.end_with_the_last, until)
        else:
            self.loop.stop()


def serve(
    settings: Settings,
    listeners: Sequence[socket.socket],
    orders: socket.socket,
    log: ErrorLog,
) -> int:
    """Serve until a signal or suexecme's end; return the exit status."""
    switch = Switch(settings, orders, log)
    for listener in listeners:
        switch.listeners.add(listener)
    for number in (signal.SIGTERM, signal.SIGINT):
        switch.loop.add_signal_handler(number, switch.stop)
    switch.loop.run()
    for connection in list(switch.connections):
        connection.close()
    return 1 if switch.failed else 0
