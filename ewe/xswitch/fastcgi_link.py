"""The main module's end of an engine that speaks FastCGI: one connection, one request at a time."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from ewe import fastcgi
from ewe.xswitch.links import Link, how_it_ended

if TYPE_CHECKING:
    from ewe.xswitch.main import Switch
    from ewe.xswitch.pool import Key
    from ewe.xswitch.task import Task


class FastCGILink(Link):
    """An engine that speaks FastCGI: php-cgi, or any other."""

    def __init__(self, switch: Switch, key: Key, data: socket.socket, errors: int) -> None:
        super().__init__(switch, key, data, errors)
        self.requester = fastcgi.Requester()

    def begin(self, task: Task) -> None:
        begin = self.requester.begin(task.environment().items(), keep=True)
        self.outbox.send(begin + b"".join(map(self.requester.input, task.take_input())))

    def body(self, data: bytes) -> None:
        if self.requester.running:
            self.outbox.send(self.requester.input(data))

    def on_data(self) -> None:
        piece = self.receive()
        if piece is not None:
            self.take(piece)

    def take(self, piece: bytes) -> None:
        """Take records; b"": the end of the connection."""
        if not piece or self.task is None:
            self.broken("it closed its connection" if self.status is None else how_it_ended(self.status))
            return
        output = []
        try:
            for event in self.requester.feed(piece):
                if isinstance(event, fastcgi.Output):
                    output.append(event.data)
                elif isinstance(event, fastcgi.Errors):
                    self.log_errors(event.data.splitlines())
                elif event.protocol_status != fastcgi.REQUEST_COMPLETE:
                    self.broken(f"it refused the request (protocol status {event.protocol_status})")
                    return
                else:
                    self.done(b"".join(output), event.app_status, last=self.status is not None)
                    return
        except fastcgi.FastCGIError as error:
            self.broken(str(error))
            return
        if output:
            self.task.write(b"".join(output))

    def ended(self, status: int) -> None:
        """All that it has written is there. A program that it started may hold the connection open, without end."""
        super().ended(status)
        while not self.closed and self.task is not None and (piece := self.receive()):
            self.take(piece)
        if not self.closed:
            self.broken(how_it_ended(status))
