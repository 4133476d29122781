"""The main process: one event loop between web servers, which speak FastCGI, and engines. It has no privileges.

This file connects the parts and passes each request on. A request goes through the parts in this order:

    listening               a web server connects
    web_server_connection   FastCGI records become a request: Switch.begin() makes its exchange
    identify                suexecme reports the script's owner; its answers are cached for 2 seconds
    scheduler               finds an idle engine, or starts a new one, or puts the exchange into a queue
    engine_starter          suexecme starts a process as the script's owner
    engine                  the request is written to the engine, and the response read
    exchange                the response goes back to the web server; every failure is handled here

orders.py sends orders to suexecme. If suexecme ends or hangs, this process ends too: the supervisor starts both
again, and connections wait in the backlog meanwhile.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from ewe.config.defaults import WEB_INF, XSWITCH_STATUS_PATH
from ewe.logger import ErrorLog
from ewe.trace import NONE, Trace
from ewe.xswitch import channel
from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.packages import VERSIONS
from ewe.xswitch.protocol import ProtocolError
from ewe.xswitch.setting_types import OVER_TLS
from ewe.xswitch.settings import Settings, read_copy
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.control import ActionRefused, Control
from ewe.xswitch.switch.engine import Engine
from ewe.xswitch.switch.engine_starter import EngineStarter
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import DONE, HAS_ENGINE, IDENTIFYING
from ewe.xswitch.switch.identify import (
    Answer,
    IdentifiedScript,
    Identifier,
    RefusedScript,
    Signature,
    file_signature,
    script_file,
    script_path,
)
from ewe.xswitch.switch.installations import Installations
from ewe.xswitch.switch.listening import Listeners
from ewe.xswitch.switch.loop import EventLoop
from ewe.xswitch.switch.orders import Orders
from ewe.xswitch.switch.peers import Peers
from ewe.xswitch.switch.primer import Primer
from ewe.xswitch.switch.resources import MachineReader
from ewe.xswitch.switch.response_head import NO_ENGINE
from ewe.xswitch.switch.scheduler import LANGUAGE, USER, Key, Scheduler
from ewe.xswitch.switch.status import collect_metrics, collect_status, may_see_status, status_response
from ewe.xswitch.switch.trace import SwitchTrace, traced
from ewe.xswitch.switch.web_server_connection import WebServerConnection
from ewe.xswitch.user_limits import NO_LIMITS
from ewe.xswitch.webapp import Applications, NoApplication, WebApplication

TICK_SECONDS = 0.1  # between two checks of deadlines
GRACE_SECONDS = 10.0  # in which requests must end at a stop
CLOSE_CHECK_SECONDS = 0.02  # at a stop: between two checks whether all connections are closed
LAST_WRITE_SECONDS = 0.05  # to write the last responses after suexecme has ended
MAX_MEASURED = 1000  # engines whose memory the status shows: a message has no room for more
STATUS_URL = XSWITCH_STATUS_PATH.encode()
AS_JSON = {b"QUERY_STRING": b"json"}  # parameters with which status_response() returns JSON
MAX_PATH_BYTES = 4096  # of a path, its final NUL included: Linux's PATH_MAX


class Switch:
    """The parts of the main process, and their communication with suexecme."""

    def __init__(
        self,
        settings: Settings,
        orders: socket.socket,
        log: ErrorLog,
        trace: Trace | None = None,
        owner: int = 0,
    ) -> None:
        """Connect the parts.

        orders: the channel to suexecme. trace: where events are written; None: nowhere. owner: the uid of the
        supervisor.
        """
        self.log = log
        self.loop = EventLoop(self.on_fault)
        self.orders = Orders(orders, settings, self.loop)
        # Scheduler and context come first: both call the starter, which needs the context.
        self.scheduler: Scheduler[Exchange, Engine] = Scheduler(
            settings, lambda exchange: self.starter.start(exchange), MachineReader().read, log.write
        )
        self.context = Context(settings, self.loop, log, self.scheduler, lambda pid: self.starter.kill(pid))
        self.context.trace = SwitchTrace(trace) if trace is not None else None
        self.exchange_class = traced(trace) if trace is not None else Exchange
        self.identifier = Identifier(self.context, self.orders)
        self.starter = EngineStarter(self.context, self.orders, self.identifier.user_of)
        self.applications = Applications()
        self.primer: Primer | None = None  # None: no engine starts before its first request (setting `prime`)
        if settings.prime:
            self.primer = Primer(settings.prime, self.scheduler, self.prime, log)
        self.scheduler.replace = self.start_replacement
        self.installations = Installations(self.loop)
        self.control = Control(self.context, owner)
        self.listeners = Listeners(self.loop, log)
        self.connections: set[WebServerConnection] = set()
        self.peers = Peers(self.context, self.connected)
        self.started_at = time.monotonic()
        self.failed = False
        self.loop.add_reader(orders, self.on_orders)
        self.loop.call_later(TICK_SECONDS, self.tick)

    # A request

    def connected(self, sock: socket.socket) -> None:
        """Serve the connection of a web server, or of another X-Switch."""
        connection = WebServerConnection(self.context, sock, self.begin, self.connections.discard)
        self.connections.add(connection)

    def begin(
        self, client: WebServerConnection, params: dict[bytes, bytes], body: Sequence[bytes]
    ) -> Exchange:
        """Start a request: find its script, then the script's owner.

        body: the pieces received so far; b"" marks the end.
        """
        # One web server sends the URL's path in the first two, another in the third
        if STATUS_URL in (
            params.get(b"SCRIPT_NAME", b"") + params.get(b"PATH_INFO", b""),
            params.get(b"DOCUMENT_URI"),
        ):
            return self.begin_status(client, params, body)
        self.context.counters["requests"] += 1
        file = script_file(params)
        far_kind = self.peers.kind_of(file, params) if self.peers.engines else None
        application: WebApplication | None = None
        path, signature = file, Signature()
        try:
            if far_kind is None:
                application, path, signature = self.find_script(file, params)
        except NoApplication as reason:
            exchange = self.exchange_class(client, self.context, params, file)
            exchange.fail(reason.status, str(reason))
            return exchange
        exchange = self.exchange_with_body(client, params, path, body)
        exchange.application = application
        if exchange.state is DONE:
            return exchange
        if not path:
            exchange.fail(400, "SCRIPT_FILENAME is missing: the web server must send it")
        elif len(os.fsencode(path)) >= MAX_PATH_BYTES:
            exchange.fail(404, "no script: its path is too long")
        elif f"/{VERSIONS}/" in path:
            exchange.fail(404, "no URL names a version of a package: its link does (packages)")
        elif self.context.is_stopping:
            exchange.fail(503, "stopping")
        elif far_kind is not None:
            self.send_far(exchange, far_kind)
        else:
            self.identifier.identify(path, signature, lambda answer: self.identified(exchange, answer))
        return exchange

    def exchange_with_body(
        self, client: WebServerConnection, params: dict[bytes, bytes], script: str, body: Sequence[bytes]
    ) -> Exchange:
        """Return a new exchange that has got the pieces of its body. It is DONE if the body is refused.

        body: the pieces that have arrived with the beginning of the request; b"" at the end: no more follow. Later
        pieces come by Exchange.body_arrived().
        """
        exchange = self.exchange_class(client, self.context, params, script)
        if exchange.body_left < 0:
            exchange.fail(400, "CONTENT_LENGTH is no number")
        for piece in body:
            if exchange.state is not DONE:
                exchange.body_arrived(piece)
        return exchange

    def find_script(
        self, file: str, params: dict[bytes, bytes]
    ) -> tuple[WebApplication | None, str, Signature]:
        """Return the web application of a file, the path for suexecme, and its signature. Raises NoApplication."""
        application = self.applications.find(file, params, self.context.settings)
        if application is None:
            return None, *script_path(file, params)
        path = f"{application.directory}/{WEB_INF}"
        return application, path, file_signature(path)

    def find_script_again(self, exchange: Exchange) -> None:
        """Find the script of a waiting request again, and the owner of the script.

        suexecme had found no script while a package of the user was being installed. The package may contain it.
        """
        if exchange.state is not IDENTIFYING:
            return  # the client has left in the meantime
        file = script_file(exchange.params)
        # The cache may still say that no web application contains this file
        self.applications.directories.forget(file)
        try:
            exchange.application, exchange.script, signature = self.find_script(file, exchange.params)
        except NoApplication as reason:
            exchange.fail(reason.status, str(reason))
            return
        self.identifier.identify(
            exchange.script, signature, lambda answer: self.identified(exchange, answer, has_waited=True)
        )

    def send_far(self, exchange: Exchange, kind: EngineKind) -> None:
        """Give an exchange to engines on another machine. The script's owner is known only there."""
        exchange.key, exchange.is_far = self.peers.engines[kind.name].key, True
        exchange.limits = NO_LIMITS
        exchange.user = exchange.key[USER]
        exchange.identified()

    def identified(self, exchange: Exchange, answer: Answer, has_waited: bool = False) -> None:
        """Give an exchange to the scheduler: suexecme has reported the script's owner.

        has_waited: for the end of an installation; it does not wait again.
        """
        if exchange.state is not IDENTIFYING:
            return  # the client has left in the meantime
        if isinstance(answer, RefusedScript):
            if (
                answer.home
                and not has_waited
                and self.installations.wait(answer.home, lambda: self.find_script_again(exchange))
            ):
                return
            exchange.user = answer.user
            exchange.fail(answer.status, answer.reason)
            return
        exchange.user, exchange.uid = answer.user, answer.uid
        # Before the scheduler gets the exchange: it also asks for the limits by the user's name.
        exchange.limits = self.scheduler.limits.note_groups(answer.user, answer.groups)
        kind = self.engine_kind_for(exchange, answer)
        if kind is None:
            # NO_ENGINE: the web server may run the script itself
            cause = "no engine for it: neither its directory, its extension nor its first line names one"
            exchange.fail(500, cause, NO_ENGINE)
            return
        if kind.address:
            self.send_far(exchange, kind)
            return
        exchange.script, exchange.own_variables = answer.path, answer.variables
        if exchange.application is not None:
            # answer.path is that of the application's WEB-INF
            exchange.application = exchange.application.with_directory(os.path.dirname(answer.path))
        exchange.key = (answer.user, kind.name)
        if self.primer is not None:
            self.primer.note_request(exchange.key, answer.path)
        try:
            if kind.protocol == "engine":
                exchange.make_engine_request()
        except ProtocolError as error:
            exchange.fail(431, str(error))
            return
        exchange.identified()

    def engine_kind_for(self, exchange: Exchange, answer: IdentifiedScript) -> EngineKind | None:
        """Return the kind of engine for a script, None if there is none.

        The web server may name it by XSWITCH_ENGINE, as the paper's mod_x does.
        """
        language = exchange.params.get(b"XSWITCH_ENGINE")
        if language:
            return self.context.settings.engines.get(language.decode("latin-1"))
        return answer.kind

    def prime(
        self, key: Key, script: str, on_decided: Callable[[bool], None], for_visitors: bool = True
    ) -> None:
        """Start an idle engine for a key (user, language), if suexecme says that the script still belongs to it.

        on_decided: called with False if the script must not run any more, else with True (primer.Start).
        for_visitors: count the engine as primed; False: it replaces one that was restarted.
        """

        def identified(answer: Answer) -> None:
            """Start the engine if the script's owner and language are still those of the key."""
            if isinstance(answer, RefusedScript):
                # 503: suexecme has not answered in time. The script may still be allowed to run
                on_decided(answer.status == 503)
                return
            self.scheduler.limits.note_groups(answer.user, answer.groups)
            if answer.kind is None or (answer.user, answer.kind.name) != key:
                on_decided(False)
                return
            if self.scheduler.may_prime(key) and not self.context.is_stopping:
                engine = self.starter.start_idle(key, answer.kind, answer.path, answer.uid)
                if engine is not None:
                    self.scheduler.add_idle(engine)
                    self.context.counters["primed"] += for_visitors
            on_decided(True)

        self.identifier.identify(script, file_signature(script), identified)

    def start_replacement(self, engine: Engine) -> None:
        """Start an engine in place of one that was restarted; none if its script must not run any more."""
        if engine.script and not self.context.is_stopping:
            self.prime(engine.key, engine.script, lambda may_still_run: None, for_visitors=False)

    def begin_action(
        self, client: WebServerConnection, params: dict[bytes, bytes], exchange: Exchange
    ) -> Exchange:
        """Start a request that lists engines, ends them or shows messages (control.py); return its exchange.

        The action `list` is answered once suexecme has measured the engines, all others at once.
        """
        try:
            action = self.control.action_of(client.socket, params)
        except ActionRefused as reason:
            self.log.warning(f"an action was refused: {reason}")
            exchange.answer(status_response({"error": str(reason)}, AS_JSON))
            return exchange
        if action.name != "list":
            exchange.answer(status_response(self.control.carry_out(action), AS_JSON))
            return exchange

        def on_measured(answer: dict[str, Any]) -> None:
            if exchange.state is IDENTIFYING:  # the client has not left in the meantime
                status = self.collect_status(answer)
                exchange.answer(status_response(self.control.visible_part(status, action), AS_JSON))

        self.measure([engine.pid for engine in self.control.engines_named_by(action)], on_measured)
        return exchange

    def collect_status(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the status of this machine, and of engines on other machines.

        answer: of suexecme, to `measure`.
        """
        status = collect_status(self.scheduler, len(self.connections), self.started_at, answer)
        return {**status, "far": self.peers.describe(time.monotonic())}

    def measure(self, pids: Sequence[int], on_measured: Callable[[dict[str, Any]], None]) -> None:
        """Make suexecme measure the memory of engines, and call `on_measured` with its answer.

        Only root may read every engine's memory. A pid of 0 belongs to an engine that suexecme has not started yet.
        """
        order = {"order": "measure", "pids": [pid for pid in pids if pid][:MAX_MEASURED]}
        self.orders.ask("", order, on_measured)

    def begin_status(
        self, client: WebServerConnection, params: dict[bytes, bytes], body: Sequence[bytes]
    ) -> Exchange:
        """Start a request for the status page, or for an action (control.py); return its exchange.

        ewe sets the parameter XSWITCH_STATUS to "counts" to get the numbers for its metrics. Any other value comes
        from a program that asks for the status over X-Switch's own socket. A request without it comes from a web
        server's client, who cannot set it (status.py).

        The numbers are sent at once, the status once suexecme has measured the engines.

        body: the pieces that have arrived. Their content has no effect. A body of a wrong length is refused, as for
        a script, unless the answer came first.
        """
        exchange = self.exchange_with_body(client, params, XSWITCH_STATUS_PATH, body)
        if exchange.state is DONE:
            return exchange
        if b"XSWITCH_ACTION" in params:
            return self.begin_action(client, params, exchange)
        if not may_see_status(params, self.context.settings):
            exchange.fail(
                404,
                "the status is for loopback addresses only, and needs status = true in X-Switch's settings",
            )
            return exchange
        if params.get(b"XSWITCH_STATUS") == b"counts":
            exchange.answer(status_response(collect_metrics(self.scheduler, len(self.connections)), AS_JSON))
            return exchange

        def on_measured(answer: dict[str, Any]) -> None:
            if exchange.state is IDENTIFYING:  # the client has not left in the meantime
                status = self.collect_status(answer)
                if b"XSWITCH_STATUS" in params:
                    # The account that asks over X-Switch's own socket may not see the engines of all users
                    status = self.control.part_for(client.socket, status)
                exchange.answer(status_response(status, params))

        self.measure(list(self.starter.running), on_measured)
        return exchange

    # suexecme

    def on_orders(self) -> None:
        """Read suexecme's messages until none is left; end this process if suexecme has ended."""
        while True:
            try:
                received = channel.receive(self.orders.socket)
            except BlockingIOError:
                return
            except OSError:
                received = None
            if received is None:
                self.end_all("suexecme has gone", 502)
                return
            self.handle_message(*received)

    def handle_message(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Handle one message of suexecme (suexecme.py lists them).

        A message may bring other settings, another log, the end of an engine's process or of an installation of
        packages, a line about an installed package, or the answer to an order. descriptors: of the settings, of the
        log, or of the log of the user whom the message names.
        """
        if "settings" in message or "log" in message:
            [descriptor] = descriptors
            if "log" in message:
                os.dup2(descriptor, 2)  # standard error is the log
            else:
                self.change_settings(read_copy(descriptor))
            os.close(descriptor)
            return
        for descriptor in descriptors:
            self.context.user_logs.use_descriptor(message["user"], descriptor)  # of the user's log
        if "ended" in message:
            self.starter.process_ended(message["ended"], message["status"], message.get("cause", ""))
        elif "installed" in message:
            self.installations.ended(message["installed"])
        elif "package" in message:
            self.context.log_for_user(message["user"], message["package"], "info")
        else:
            self.orders.answered(message)

    def change_settings(self, settings: Settings) -> None:
        """Use other settings. Idle engines of a changed kind end; busy ones stay, and are used again."""
        old_settings = self.context.settings
        self.context.change_settings(settings)
        self.orders.settings = settings
        self.peers.change_settings(settings)
        self.identifier.clear()
        for engine in [engine for engines in self.scheduler.idle.values() for engine in engines]:
            language = engine.key[LANGUAGE]
            if settings.engines.get(language) != old_settings.engines.get(language):
                self.scheduler.end_idle(engine, "changed")

    def end_all(self, cause: str, status: int) -> None:
        """End, because suexecme has ended or hangs: all exchanges get an error, and all engines end.

        The supervisor starts both processes again.
        """
        self.loop.remove_reader(self.orders.socket)
        self.listeners.stop()
        self.log.error(f"{cause}; both processes start again")
        self.context.is_stopping = self.failed = True
        # Scheduled first: no fault in the code below may keep this process alive.
        self.loop.call_later(LAST_WRITE_SECONDS, self.loop.stop)
        # First the exchanges without an engine: the scheduler must not start an engine for them.
        for connection in list(self.connections):
            exchange = connection.exchange
            if exchange is not None and exchange.state not in HAS_ENGINE:
                exchange.fail(status, cause)
        self.orders.refuse_all()
        for engine in list(self.scheduler.engines):
            engine.fail(cause)
        self.peers.fail(cause)

    # Time, faults, the end

    def tick(self) -> None:
        """Check all deadlines."""
        self.loop.call_later(TICK_SECONDS, self.tick)
        now = time.monotonic()
        if not self.orders.tick(now) and not self.failed:
            self.end_all("suexecme does not answer", 503)
        self.scheduler.tick(now)
        self.peers.tick(now)
        if self.primer is not None and not self.context.is_stopping:
            self.primer.tick()
        for connection in [connection for connection in self.connections if connection.is_overdue(now)]:
            connection.close()

    def on_fault(self, fault: Exception) -> None:
        """Log a bug in this program that the event loop has caught."""
        self.log.exception("the main module failed")

    def stop(self) -> None:
        """Accept no more requests; end when the running ones have ended, or after GRACE_SECONDS."""
        self.context.is_stopping = True
        if self.primer is not None:
            self.primer.save()
        self.listeners.stop()
        for connection in list(self.connections):
            if connection.exchange is None:
                (connection.leave if connection.outbox.pending else connection.close)()
        self.stop_after_last_connection(time.monotonic() + GRACE_SECONDS)

    def stop_after_last_connection(self, until: float) -> None:
        """Stop the loop once all connections are closed."""
        if self.connections and time.monotonic() < until:
            self.loop.call_later(CLOSE_CHECK_SECONDS, self.stop_after_last_connection, until)
        else:
            self.loop.stop()


def serve(
    settings: Settings,
    listeners: Sequence[socket.socket],
    orders: socket.socket,
    log: ErrorLog,
    trace: Trace | None = None,
    owner: int = 0,
) -> int:
    """Serve until a signal or suexecme's end; return the exit status. owner: the uid of the supervisor."""
    switch = Switch(settings, orders, log, trace, owner)
    for address, listener in zip(settings.listen, listeners, strict=True):
        over_tls = address.startswith(OVER_TLS)
        switch.listeners.add(listener, switch.peers.accepted if over_tls else switch.connected)
    for number in (signal.SIGTERM, signal.SIGINT):
        switch.loop.add_signal_handler(number, switch.stop)
    if trace is not None:
        trace.write("x-begins", NONE)
    switch.loop.run()
    for connection in list(switch.connections):
        connection.close()
    if trace is not None:
        trace.write("x-stops", NONE)
    return 1 if switch.failed else 0
