"""The main process's end of an engine that speaks FastCGI, as php-cgi does: one request at a time."""

from __future__ import annotations

import socket

from ewe.gateway import records
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import CLOSED, MAX_DRAINED_PIECES, OVER, Engine, exit_text
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.scheduler import Key


class FastCGIEngine(Engine):
    """An engine that speaks FastCGI."""

    def __init__(self, context: Context, key: Key, data: socket.socket, error_pipe: int) -> None:
        super().__init__(context, key, data, error_pipe)
        self.requester = records.Requester()

    def send_request(self, exchange: Exchange) -> None:
        head = self.requester.begin(exchange.environment().items(), keep=True)
        body_pieces = exchange.take_body()
        self.outbox.send(head + b"".join(map(self.requester.input, body_pieces)))
        if self.outbox.failed:
            self.give_back(exchange, body_pieces)

    def send_body(self, data: bytes) -> None:
        if self.requester.running:  # else the engine has answered before the end of the body
            self.outbox.send(self.requester.input(data))

    def on_data(self) -> None:
        piece = self.receive()
        if piece is not None:
            self.handle_records(piece)

    def handle_records(self, piece: bytes) -> None:
        """Handle FastCGI records that the engine has sent: output, errors, or the end of the request.

        The engine fails if `piece` is b"", the end of the connection, or if no request runs.
        """
        if not piece:
            status = self.exit_status
            self.fail("it closed its connection" if status is None else exit_text(status))
            return
        if self.exchange is None:
            self.fail("it wrote although no request runs")
            return
        output = []
        try:
            for event in self.requester.feed(piece):
                if isinstance(event, records.Output):
                    output.append(event.data)
                elif isinstance(event, records.Errors):
                    self.errors.log_data(event.data, flush=True)
                elif event.protocol_status != records.REQUEST_COMPLETE:
                    self.fail(f"it refused the request (protocol status {event.protocol_status})")
                    return
                else:
                    self.response_complete(b"".join(output), event.app_status)
                    return
        except records.FastCGIError as error:
            self.fail(str(error))
            return
        if output:
            self.pass_output(b"".join(output))

    def process_ended(self, status: int) -> None:
        """Handle what the process has written; without a complete response, the request fails."""
        super().process_ended(status)
        self.read_rest()
        if self.state is not CLOSED:
            self.fail(exit_text(status))

    def read_rest(self) -> None:
        """Handle the output of the process, which has ended.

        Do not wait for the end of the connection: a program that the engine started may keep it open.
        """
        for _ in range(MAX_DRAINED_PIECES):  # such a program may also write without an end
            if self.state in (OVER, CLOSED) or self.exchange is None or not (piece := self.receive()):
                break
            self.handle_records(piece)
