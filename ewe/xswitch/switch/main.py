"""The main process: one event loop between web servers, which speak FastCGI, and engines. It has no privileges.

This file makes the parts, and tells them what concerns all of them: the time, other settings, the end. A request
meets the parts in this order. Left: the attribute of Switch; then the file:

    listeners         listening               a web server connects
    connections       web_server_connection   FastCGI records become a request
    requests          requests                the request's script is found
      status_requests   status                  ... or it is for X-Switch's own page: the status, an action
      peers             peers                   ... or the script is on another machine
    identifier        identify                suexecme reports the script's owner; answers are cached for 2 seconds
    scheduler         scheduler               finds an idle engine, or starts one, or puts the exchange into a queue
    starter           engine_starter          suexecme starts a process as the script's owner
                      engine                  the request is written to the engine, and the response read
                      exchange                the response goes back to the web server; it handles every failure

    orders            orders                  the orders to suexecme, which wait in a queue for each user
    early_starts      primer                  starts engines for which no request waits
    context           context                 what all parts share: the settings, the loop, the log, the counters
    loop              loop                    calls the parts back

If suexecme ends or hangs, this process ends too: the supervisor starts both again, and connections wait in the
backlog meanwhile.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from ewe.logger import ErrorLog
from ewe.trace import NONE, Trace
from ewe.xswitch import channel
from ewe.xswitch.settings import Settings, read_copy
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine_starter import EngineStarter
from ewe.xswitch.switch.identify import Identifier
from ewe.xswitch.switch.listening import Listeners
from ewe.xswitch.switch.loop import EventLoop
from ewe.xswitch.switch.orders import Orders
from ewe.xswitch.switch.peers import Peers
from ewe.xswitch.switch.primer import EarlyStarts
from ewe.xswitch.switch.requests import ScriptRequests
from ewe.xswitch.switch.resources import MachineReader
from ewe.xswitch.switch.scheduler import Scheduler
from ewe.xswitch.switch.status import StatusRequests
from ewe.xswitch.switch.web_server_connection import WebServerConnections

TICK_SECONDS = 0.1  # between two checks of deadlines
GRACE_SECONDS = 10.0  # in which requests must end at a stop
CLOSE_CHECK_SECONDS = 0.02  # at a stop: between two checks whether all connections are closed
LAST_WRITE_SECONDS = 0.05  # to write the last responses after suexecme has ended


class Switch:
    """The parts of the main process, and the messages of suexecme."""

    def __init__(
        self,
        settings: Settings,
        orders: socket.socket,
        log: ErrorLog,
        trace: Trace | None = None,
        owner: int = 0,
    ) -> None:
        """Make the parts. A part gets those that it calls; a lambda stands for a part that is made after it.

        orders: the channel to suexecme. trace: where events are written; None: nowhere. owner: the uid of the
        supervisor.
        """
        self.log = log
        self.loop = EventLoop(self.on_fault)
        self.orders = Orders(orders, settings, self.loop)
        self.scheduler: Scheduler[Any, Any] = Scheduler(
            settings, lambda exchange: self.starter.start(exchange), MachineReader().read, log.write
        )
        self.context = Context(
            settings, self.loop, log, self.scheduler, lambda pid: self.starter.kill(pid), trace
        )
        self.starter = EngineStarter(self.context, self.orders)
        self.identifier = Identifier(self.context, self.orders)
        self.early_starts = EarlyStarts(self.context, self.identifier, self.starter)
        self.peers = Peers(self.context, lambda sock: self.connections.connected(sock))
        self.status_requests = StatusRequests(
            self.context, self.starter, self.peers, lambda: len(self.connections.open), owner
        )
        self.requests = ScriptRequests(
            self.context,
            self.identifier,
            self.peers,
            self.status_requests.begin,
            self.early_starts.primer,
        )
        self.connections = WebServerConnections(self.context, self.requests.begin)
        self.listeners = Listeners(self.loop, log)
        self.failed = False
        self.loop.add_reader(orders, self.on_orders)
        self.loop.call_later(TICK_SECONDS, self.tick)

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

        descriptors: of the settings, of the log, or of the log of the user whom the message names.
        """
        if "settings" in message or "log" in message:
            if not descriptors:  # recvmsg(2) drops a descriptor for which the process has no number left
                self.log.error(
                    "new settings, or a new log, did not arrive: too many open files; reload again"
                )
                return
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
            self.starter.process_ended(message["ended"], message["status"], message["cause"])
        elif "installed" in message:
            self.requests.installations.ended(message["installed"])
        elif "package" in message:
            self.context.log_for_user(message["user"], message["package"], "info")
        else:
            self.orders.answered(message)

    def change_settings(self, settings: Settings) -> None:
        """Use other settings."""
        self.context.change_settings(settings)
        self.orders.settings = settings
        self.peers.change_settings(settings)
        self.identifier.clear()

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
        self.connections.fail(status, cause)
        self.orders.refuse_all()
        for engine in list(self.scheduler.engines):
            engine.fail(cause)
        self.peers.fail(cause)

    # Time, faults, the end

    def tick(self) -> None:
        """Check all deadlines, and call tick() of the parts."""
        self.loop.call_later(TICK_SECONDS, self.tick)
        now = time.monotonic()
        if not self.orders.tick(now) and not self.failed:
            self.end_all("suexecme does not answer", 503)
        self.scheduler.tick(now)
        self.peers.tick(now)
        self.early_starts.tick()
        self.connections.tick(now)

    def on_fault(self, fault: Exception) -> None:
        """Log a bug in this program that the event loop has caught."""
        self.log.exception("the main module failed")

    def stop(self) -> None:
        """Accept no more requests; end when the running ones have ended, or after GRACE_SECONDS."""
        self.context.is_stopping = True
        self.early_starts.stop()
        self.listeners.stop()
        self.connections.stop()
        self.stop_after_last_connection(time.monotonic() + GRACE_SECONDS)

    def stop_after_last_connection(self, until: float) -> None:
        """Stop the loop once all connections are closed."""
        if self.connections.open and time.monotonic() < until:
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
        switch.listeners.add(listener, switch.peers.receiver_at(address))
    for number in (signal.SIGTERM, signal.SIGINT):
        switch.loop.add_signal_handler(number, switch.stop)
    if trace is not None:
        trace.write("x-begins", NONE)
    switch.loop.run()
    switch.connections.close()
    if trace is not None:
        trace.write("x-stops", NONE)
    return 1 if switch.failed else 0
