"""The main process's end of an engine that speaks the engine protocol of the X-Switch paper (section 3.2.1).

    main process                                          engine
    control socket  ── two lines: the request ─────────▶
    data socket     ── the body ───────────────────────▶
    data socket     ◀───────────────────── the output ──
    control socket  ◀─── the end mark: exit status ─────  written after the output

When has a response ended? There are three signs, which arrive by three ways, in any order:

- **The end mark.** The output was written before the mark, and is therefore in the data socket: read_mark() and
  finish() take both. The engine is idle again, unless the data socket has ended too: then the engine will end soon.
- **The end of the output without a mark.** The engine has become the script's process (run_cgi.py), or has died.
- **The exit status**, in a message of suexecme. Leftover processes of the script may still have the data socket
  open, and write.

After the second or the third sign, end_by_exit_status() decides by the exit status: the script has ended by itself,
as a CGI script does, or it was killed. An engine that dies while it is idle is closed when its sockets end. If a
request comes first, it cannot be written, and the exchange gets another engine: send_request().
"""

from __future__ import annotations

import socket

from ewe.xswitch.protocol import MarkReader, ProtocolError
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import CLOSED, MAX_DRAINED_PIECES, OVER, Engine, exit_text
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.loop import RECEIVE_BYTES
from ewe.xswitch.switch.outbox import Outbox
from ewe.xswitch.switch.scheduler import Key

MARK_BYTES = 64  # more than an end mark has
LEFTOVER_SECONDS = 2.0  # that leftover processes may continue to write, once their engine has ended


class ProtocolEngine(Engine):
    """An engine that speaks the engine protocol: requests and end marks on a control socket, bodies on another."""

    def __init__(
        self, context: Context, key: Key, data: socket.socket, control: socket.socket, error_pipe: int
    ) -> None:
        """data, control: the main process's ends of the two sockets. error_pipe: see Engine."""
        super().__init__(context, key, data, error_pipe)
        control.setblocking(False)
        self.control = control
        self.control_outbox = Outbox(self.loop, control, self.pause_body, self.resume_body)
        self.mark_reader = MarkReader()
        self.control_ended = False
        self.mark_was_read = False  # by on_data(): on_control() can then ignore its event
        self.loop.add_reader(control, self.on_control)

    def send_request(self, exchange: Exchange) -> None:
        """Write the lines of the request to the control socket, then its body to the data socket."""
        self.control_outbox.send(exchange.engine_request)
        if self.control_outbox.failed:
            self.give_back(exchange)
            return
        for piece in exchange.take_body():
            self.send_body(piece)

    def send_body(self, data: bytes) -> None:
        if data:
            self.outbox.send(data)

    def on_data(self) -> None:
        """Pass output to the exchange, or end the response if its end mark has come."""
        # The mark is usually there already: an engine writes it right after the output.
        self.mark_was_read = self.read_mark()
        if self.mark_was_read:
            return
        piece = self.receive()
        if piece is None or self.state is CLOSED:
            return
        if self.exchange is None:
            # "": no message. The engine has ended while it was idle, or has written without a request
            self.fail("")
        elif piece:
            self.pass_output(piece)
        else:
            self.output_ended()

    def on_control(self) -> None:
        """Read the end mark, unless on_data() has read it in the same round of the event loop."""
        if self.mark_was_read:
            self.mark_was_read = False  # if there are more bytes, the event comes again
        else:
            self.read_mark()

    def read_mark(self) -> bool:
        """Read the end mark if it has come, and then the rest of the output, which is there too.

        Return whether this has ended the request: by the mark, or by a fault.
        """
        if self.control_ended:
            return False
        try:
            received = self.control.recv(MARK_BYTES)
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
                raise ProtocolError("the engine wrote an end mark, and no request was running")
            status = self.mark_reader.feed(received)
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
        # A piece that does not fill the buffer is the last one in the socket: the usual case, in one call of
        # recv(2)
        if piece and len(piece) < RECEIVE_BYTES:
            self.response_complete(piece, status)
            return
        pieces: list[bytes] = []
        while piece is not None and len(piece) == RECEIVE_BYTES:
            pieces.append(piece)
            if len(pieces) > MAX_DRAINED_PIECES:
                self.fail("its output goes on after its mark")
                return
            piece = self.receive()
        # None: the socket is empty, and the engine will run another request. b"": the engine has closed it
        self.response_complete(b"".join((*pieces, piece or b"")), status, must_close=piece == b"")

    def output_ended(self) -> None:
        """Wait for the process to end: the output ended without a mark, so the engine is the script's process."""
        self.release_output()
        self.stop_reading()
        if self.exit_status is not None:
            self.end_by_exit_status()
        else:
            self.loop.call_later(LEFTOVER_SECONDS, self.end_by_exit_status)

    def process_ended(self, status: int) -> None:
        """Note the exit status, and end the response: at once if all output was read, else after a wait."""
        super().process_ended(status)
        if self.state is CLOSED:
            return
        self.read_mark()  # the engine may have written the mark before it ended
        if self.exchange is None:
            self.fail("")
        elif self.state is OVER:
            self.end_by_exit_status()
        else:  # leftover processes may still write
            self.loop.call_later(LEFTOVER_SECONDS, self.end_by_exit_status)

    def end_by_exit_status(self) -> None:
        """Handle an engine that ended without a mark: by itself, as a CGI script does, or by a signal."""
        self.release_output()
        exchange = self.exchange
        if self.state is CLOSED or exchange is None:
            return
        for _ in range(MAX_DRAINED_PIECES):  # a leftover process may write without an end
            if not (piece := self.receive()):
                break
            exchange.output_arrived(piece)
            if self.exchange is None:  # its head has no end: Exchange.reject_head()
                return
        if self.exit_status is None:
            self.fail("it closed its output without its mark")
        elif self.exit_status >= 0 and exchange.output_bytes:
            # The engine has ended as a CGI script does, and its output is complete. No output is a failure
            self.take_exchange()
            self.close()
            exchange.complete(b"", self.exit_status)
        else:
            self.fail(exit_text(self.exit_status))

    def close_sockets(self) -> None:
        """Close the control socket and the data socket."""
        if not self.control_ended:
            self.loop.remove_reader(self.control)
        self.control_outbox.close()
        self.control.close()
        super().close_sockets()
