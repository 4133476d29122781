"""Requests for X-Switch's own page: the status, and the actions that list engines, end them or show messages.

status.py has the pages, and control.py the actions and the rights of the accounts that ask for them. This file
begins the exchange, and answers it: at once, or when suexecme has measured the memory of the engines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ewe.config.defaults import XSWITCH_STATUS_PATH
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.control import ActionRefused, Control
from ewe.xswitch.switch.engine_starter import EngineStarter
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import DONE, IDENTIFYING
from ewe.xswitch.switch.peers import Peers
from ewe.xswitch.switch.status import collect_metrics, collect_status, may_see_status, status_response
from ewe.xswitch.switch.web_server_connection import WebServerConnection

MAX_MEASURED = 1000  # engines whose memory the status shows: a message has no room for more
AS_JSON = {b"QUERY_STRING": b"json"}  # parameters with which status_response() returns JSON


class StatusRequests:
    """Begins requests for the status page, and answers them."""

    def __init__(
        self,
        context: Context,
        starter: EngineStarter,
        peers: Peers,
        count_connections: Callable[[], int],
        owner: int,
    ) -> None:
        """count_connections: returns how many web servers' connections are open.

        owner: the uid of the account that started X-Switch.
        """
        self.context = context
        self.starter = starter
        self.peers = peers
        self.count_connections = count_connections
        self.control = Control(context, owner)
        self.started_at = time.monotonic()

    def begin(
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
        exchange = client.new_exchange(params, XSWITCH_STATUS_PATH, body)
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
            numbers = collect_metrics(self.context.scheduler, self.count_connections())
            exchange.answer(status_response(numbers, AS_JSON))
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

    def begin_action(
        self, client: WebServerConnection, params: dict[bytes, bytes], exchange: Exchange
    ) -> Exchange:
        """Start a request that lists engines, ends them or shows messages (control.py); return its exchange.

        The action `list` is answered once suexecme has measured the engines, all others at once.
        """
        try:
            action = self.control.action_of(client.socket, params)
        except ActionRefused as reason:
            self.context.log.warning(f"an action was refused: {reason}")
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
        count = self.count_connections()
        status = collect_status(self.context.scheduler, count, self.started_at, answer)
        return {**status, "far": self.peers.describe(time.monotonic())}

    def measure(self, pids: Sequence[int], on_measured: Callable[[dict[str, Any]], None]) -> None:
        """Make suexecme measure the memory of engines, and call `on_measured` with its answer.

        Only root may read every engine's memory. A pid of 0 belongs to an engine that suexecme has not started yet.
        """
        order = {"order": "measure", "pids": [pid for pid in pids if pid][:MAX_MEASURED]}
        self.starter.orders.ask("", order, on_measured)
