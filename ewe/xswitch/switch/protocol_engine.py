"""The main process's end of an engine that speaks the engine protocol of the X-Switch paper (section 3.2.1).

    main process                                          engine
    control socket  ── two lines: the request ─────────▶
    data socket     ── the body ───────────────────────▶
    data socket     ◀───────────────────── the output ──
    control socket  ◀─── the end mark: exit status ─────  written after the output

When has a response ended? Three signs arrive by three ways, in any order:

- **The end mark.** The output was written before it, and is therefore in the data socket: read_mark() and finish()
  take both. The engine is idle again, unless the data socket has ended too: then the engine is about to end.
- **The end of the output without a mark.** The engine has become the script's process (run_cgi.py), or has died.
- **The exit status**, in a message of suexecme. Processes that the script left behind may still hold the data
  socket, and write.

After the second or the third sign, settle() judges: by the exit status, whether the script has ended by itself, as
a CGI script does, or was killed. An engine that dies while it is idle is closed when its sockets end. If a request
comes first, it cannot be written, and the exchange gets another engine: send_request().
"""

from __future__ import annotations

import socket

from ewe.xswitch.protocol import MarkReader, ProtocolError
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import CLOSED, MAX_DRAIN, OVER, Engine, how_it_ended
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.loop import RECEIVE_BYTES
from ewe.xswitch.switch.outbox import Outbox
from ewe.xswitch.switch.scheduler import Key

LINGER_SECONDS = 2.0  # that processes which an engine left behind may go on writing, once it has ended


class ProtocolEngine(Engine):
    """An engine that speaks the engine protocol: requests and end marks on a control socket, bodies on another."""

    def __init__(
        self, context: Context, key: Key, data: socket.socket, control: socket.socket, errors: int
    ) -> None:
        super().__init__(context, key, data, errors)
        control.setblocking(False)
        self.control = control
        self.commands = Outbox(self.loop, control, self.pause_body, self.resume_body)
        self.marks = MarkReader()
        self.control_ended = False
        self.mark_was_read = False  # by on_data: the event of the control socket is then no news
        self.loop.add_reader(control, self.on_control)

    def send_request(self, exchange: Exchange) -> None:
        self.commands.send(exchange.lines)
        if self.commands.failed:
            self.take_exchange()
            self.close()
            exchange.engine_was_dead()
            return
        for piece in exchange.take_body():
            self.send_body(piece)

    def send_body(self, data: bytes) -> None:
        if data:
            self.outbox.send(data)

    def on_data(self) -> None:
        # The mark is mostly there already: an engine writes it right after the output.
        self.mark_was_read = self.read_mark()
        if self.mark_was_read:
            return
        piece = self.receive()
        if piece is None or self.state is CLOSED:
            return
        if self.exchange is None:
            self.fail("")  # it has ended while it was idle, or has written without a request
        elif piece:
            self.exchange.output(piece)
        else:
            self.output_ended()

    def on_control(self) -> None:
        if self.mark_was_read:
            self.mark_was_read = False  # if there is more, the event comes again
        else:
            self.read_mark()

    def read_mark(self) -> bool:
        """Read the end mark if it has come, and the rest of the output, which is there too.

        Return whether the mark was there, or something else that has ended the request.
        """
        if self.control_ended:
            return False
        try:
            received = self.control.recv(64)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if not received:
            self.control_ended = True
            self.loop.remove_reader(self.control)
            if self.exchange is None:
                self.fail("")
            return False
        try:
            if self.exchange is None:
                raise ProtocolError("the engine wrote a mark where nobody asked")
            status = self.marks.feed(received)
        except ProtocolError as error:
            self.fail(str(error))
            return True
        if status is None:
            return False
        self.finish(status)
        return True

    def finish(self, status: int) -> None:
        """End the response: the mark has come, and all output is in the socket."""
        piece = self.receive()
        if piece and len(piece) < RECEIVE_BYTES:
            self.response_complete(piece, status)
            return
        pieces: list[bytes] = []
        while piece is not None and len(piece) == RECEIVE_BYTES:
            pieces.append(piece)
            if len(pieces) > MAX_DRAIN:
                self.fail("its output goes on after its mark")
                return
            piece = self.receive()
        self.response_complete(b"".join((*pieces, piece or b"")), status, last=piece == b"")

    def output_ended(self) -> None:
        """Wait for the process to end: the output ended without a mark, so the engine is the script's process."""
        self.stop_reading()
        if self.exit_status is not None:
            self.settle()
        else:
            self.loop.call_later(LINGER_SECONDS, self.settle)

    def process_ended(self, status: int) -> None:
        super().process_ended(status)
        if self.state is CLOSED:
            return
        self.read_mark()  # it may have been written before the end
        if self.exchange is None:
            self.fail("")
        elif self.state is OVER:
            self.settle()
        else:  # processes that it has left behind may still write
            self.loop.call_later(LINGER_SECONDS, self.settle)

    def settle(self) -> None:
        """Judge an engine that ended without a mark: by itself, as a CGI script does, or by a signal."""
        exchange = self.exchange
        if self.state is CLOSED or exchange is None:
            return
        for _ in range(MAX_DRAIN):  # a process that it has left behind may write without end
            if not (piece := self.receive()):
                break
            exchange.output(piece)
        if self.exit_status is None:
            self.fail("it closed its output without its mark")
        elif self.exit_status >= 0 and exchange.output_bytes:
            self.take_exchange()
            self.close()
            exchange.complete(b"", self.exit_status)
        else:
            self.fail(how_it_ended(self.exit_status))

    def close_sockets(self) -> None:
        if not self.control_ended:
            self.loop.remove_reader(self.control)
        self.commands.close()
        self.control.close()
        super().close_sockets()
