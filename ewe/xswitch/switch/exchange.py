"""One exchange: a request on its way from a web server to an engine, and the response on its way back.

    web server ── WebServerConnection ── Exchange ── Engine ── engine's process
                                            │
                                        Scheduler

The state of an exchange is its position in this process. exchange_table.py defines the effect of each event in each
state. Read that file first. This file has the methods, in three groups:

- The neighbours call the first group: identified(), body_arrived(), output_arrived(), engine_failed(), ... Each
  method turns a call into one event, and handle() looks the event up in the table.
- The table calls the second group, the actions: send(), send_error(), let_engine_end(), ...
- Two methods decide cases that the table cannot express: may_repeat(), reject_body().

Possible failures, and the reaction:

- The engine dies. If the request is safe to repeat and no byte of its response was sent, it gets a second engine.
  Otherwise the web server gets 502, or its connection is closed within the response (engine_failed). If the engine
  had died before the request came, any request gets a second engine (engine_was_dead).
- The client leaves. The script may run for `abandoned` more seconds. If the body is not complete, the engine is
  closed at once: the rest of the body will never come (let_engine_end).
- The body is longer or shorter than CONTENT_LENGTH. The exchange ends with 400, or 411 without a CONTENT_LENGTH.
  Its engine is closed, because it would read surplus bytes as the next body (reject_body).

A protocol describes each neighbour: ResponseReceiver (a connection of a web server), ScriptRunner (an engine),
ExchangeQueue (the scheduler) and Services (the rest of the main process). No method waits, and no code here uses a
socket. tests/xswitch/test_exchange.py therefore walks the whole table with fakes of a few lines.

Read next: web_server_connection.py and engine.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ewe.xswitch.protocol import request_lines
from ewe.xswitch.switch.environment import arguments_of, body_length, environment_of
from ewe.xswitch.switch.exchange_table import (
    ABANDONED,
    COMING,
    COMPLETE,
    HAS_CLIENT,
    HAS_ENGINE,
    HEAD_NOT_SENT,
    IDENTIFYING,
    TABLE,
    Event,
    IllegalEvent,
    State,
)
from ewe.xswitch.switch.response_head import (
    MAX_HEAD_BYTES,
    NO_ENGINE,
    REFUSED,
    LongHead,
    error_page,
    without_own_field,
)
from ewe.xswitch.user_limits import NO_LIMITS

if TYPE_CHECKING:
    from ewe.xswitch.settings import Settings
    from ewe.xswitch.webapp import WebApplication

SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})  # methods that may be repeated: RFC 9110 section 9.2.1
MAX_ATTEMPTS = 2  # engines that a request may be assigned to, if the first crashes
MAX_UNREAD_ATTEMPTS = 3  # the same, if the earlier ones got no byte of it
MAX_WAITING_BYTES = 64 * 1024  # of a body, while no engine takes them


class ResponseReceiver(Protocol):
    """The side that waits for the response: a web server's connection."""

    def send_output(self, data: bytes) -> None:
        """Send part of the response."""

    def end_response(self, data: bytes, status: int) -> None:
        """Send the rest of the response. status: the script's exit status."""

    def break_off(self) -> None:
        """Close the connection within the response: the web server then knows that it is not complete."""

    def pause_reading(self) -> None:
        """Stop reading the body for now."""

    def resume_reading(self) -> None:
        """Read the body again."""


class ScriptRunner(Protocol):
    """The side that runs the script: an engine."""

    def send_body(self, data: bytes) -> None:
        """Pass on part of the body; b"" is its end."""

    def body_received(self, bytes_left: int) -> None:
        """Note that part of the body has come; `bytes_left` have not."""

    def pause_output(self) -> None:
        """Stop reading the response for now."""

    def resume_output(self) -> None:
        """Read the response again."""

    def client_left(self) -> None:
        """Note that the response is no longer wanted: the script has `abandoned` seconds left."""

    def fail(self, cause: str) -> None:
        """Close the engine, and make the exchange fail with this cause."""

    def discard(self, end_cause: str) -> None:
        """Close the engine, and tell the exchange nothing: it has ended already. end_cause: for the trace."""


class ExchangeQueue(Protocol):
    """The scheduler, as an exchange sees it."""

    waiting: int  # exchanges in all queues

    def submit(self, exchange: Any) -> None:
        """Give the exchange to an engine, now or later, or refuse it."""

    def withdraw(self, exchange: Any) -> None:
        """Remove the exchange from its queue, if it waits."""


class Services(Protocol):
    """The interface of the main process to an exchange; `context.Context` implements it."""

    counters: Counter[str]
    settings: Settings
    is_stopping: bool

    @property
    def scheduler(self) -> ExchangeQueue: ...

    def log_for_user(self, user: str, message: str, level: str = "warning") -> None:
        """Log a message about a user's script, also in the user's log."""


class Exchange:
    """One request and its response. The state says how far it has come; no flag repeats that."""

    def __init__(
        self, client: ResponseReceiver, services: Services, params: dict[bytes, bytes], script: str
    ) -> None:
        """params: the web server's parameters of the request. script: the path of its script."""
        self.client = client
        self.services = services
        self.params = params
        self.script = script
        self.application: WebApplication | None = None  # of Java; `script` is then the path of its WEB-INF
        self.is_far = False  # the request goes to engines on another machine
        self.user = ""  # the script's owner, once suexecme has reported it
        self.uid = -1
        self.limits = NO_LIMITS  # of the user, when suexecme's answer about the script came
        # Variables that X-Switch or the script's package sets, such as HOME; they replace those of the web server
        self.own_variables: dict[bytes, bytes] = {}
        self.key = ("", "")  # user and language: which engines can run it
        self.queued_at = 0.0  # the monotonic time at which the exchange last went to the scheduler
        self.state = IDENTIFYING
        self.engine: ScriptRunner | None = None  # the engine that was assigned last
        self.attempts = 0  # engines that were assigned
        self.withheld_head = b""  # the beginning of the response, until its head is complete
        self.output_bytes = 0  # that the engine has written
        self.engine_request = b""  # the request, for an engine that speaks the engine protocol
        self.body_state = COMING
        self.body_bytes_left = body_length(params)  # bytes that have not arrived
        self.body_pieces: list[bytes] = []  # of the body, until there is an engine; b"" is its end
        self.body_pieces_bytes = 0

    def handle(self, event: Event, *details: Any) -> None:
        """Take one step of the table. Raises IllegalEvent."""
        step = STEPS.get((self.state, event))
        if step is None:
            raise IllegalEvent(self.state, event.name)
        self.state, action = step
        action(self, *details)

    # Called by the main process

    def identified(self) -> None:
        """Wait for an engine: the owner and the key are known."""
        self.handle(Event.IDENTIFIED)

    def answer(self, response: bytes) -> None:
        """Respond without an engine."""
        self.handle(Event.ANSWERED, response, 0)

    def fail(self, status: int, cause: str, field_value: str = REFUSED) -> None:
        """End with an error. status: of the error page, if it can still be sent. cause: for the log.

        field_value: of the header field X-Switch, REFUSED or NO_ENGINE (response_head.py).
        """
        self.handle(Event.FAILED, status, cause, field_value)

    def environment(self) -> dict[bytes, bytes]:
        """Return the script's environment."""
        return environment_of(self.params, self.own_variables, self.application)

    def make_engine_request(self) -> None:
        """Make the request of the engine protocol. Raises ProtocolError."""
        self.engine_request = request_lines(
            self.own_variables[b"SCRIPT_FILENAME"], arguments_of(self.params), self.environment()
        )

    # Called by the scheduler

    def refuse(self, status: int, cause: str) -> None:
        """End with an error; the scheduler has already forgotten the exchange."""
        self.handle(Event.REFUSED, status, cause)

    # Called by the client's side

    def body_arrived(self, data: bytes) -> None:
        """Take part of the body; b"" is its end. Raises IllegalEvent after the end."""
        if self.body_state is COMPLETE:
            raise IllegalEvent(self.body_state, "body")
        self.body_bytes_left -= len(data)
        if not data:
            self.body_state = COMPLETE
        if self.body_bytes_left < 0 or (not data and self.body_bytes_left):
            self.reject_body()
        elif self.engine is not None and self.state in HAS_ENGINE:
            if data:
                self.engine.body_received(self.body_bytes_left)
            self.engine.send_body(data)
        else:
            self.body_pieces.append(data)
            self.body_pieces_bytes += len(data)
            if self.body_pieces_bytes > MAX_WAITING_BYTES:
                self.pause_body()

    def reject_body(self) -> None:
        """Refuse a body whose length is not CONTENT_LENGTH: the engine would read the rest as the next body."""
        has_engine = self.state in HAS_ENGINE  # asked before fail(), which changes the state
        if self.params.get(b"CONTENT_LENGTH"):
            self.fail(400, "its body is not as long as CONTENT_LENGTH says")
        else:
            self.fail(411, "the body has no CONTENT_LENGTH: let the web server buffer chunked bodies")
        if has_engine and self.engine is not None:
            self.engine.discard("killed: a body without its end would be read as the next request")

    def client_left(self) -> None:
        """Note that the response is no longer wanted."""
        self.handle(Event.LEFT)

    def pause_output(self) -> None:
        """Make the engine wait: the web server takes the response more slowly than the engine writes it."""
        if self.engine is not None and self.state in HAS_ENGINE:
            self.engine.pause_output()

    def resume_output(self) -> None:
        """Make the engine continue."""
        if self.engine is not None and self.state in HAS_ENGINE:
            self.engine.resume_output()

    # Called by the engine

    def assigned(self, engine: ScriptRunner) -> None:
        """Note the engine that runs the script from now on."""
        self.handle(Event.ASSIGNED, engine)

    def take_body(self) -> list[bytes]:
        """Return the part of the body that has arrived; the rest goes directly to the engine."""
        pieces, self.body_pieces = self.body_pieces, []
        self.body_pieces_bytes = 0
        self.resume_body()
        return pieces

    def pause_body(self) -> None:
        """Stop reading the body for now."""
        if self.state in HAS_CLIENT:
            self.client.pause_reading()

    def resume_body(self) -> None:
        """Read the body again."""
        if self.state in HAS_CLIENT:
            self.client.resume_reading()

    def output_arrived(self, data: bytes) -> None:
        """Send part of the response to the web server, but withhold the head until it is complete."""
        self.output_bytes += len(data)
        if self.state in HEAD_NOT_SENT:
            try:
                sendable = without_own_field(self.withheld_head, data, is_far=self.is_far)
            except LongHead:
                self.reject_head()
                return
            if sendable is None:  # the head is not complete
                self.withheld_head += data
                self.handle(Event.HELD)
                return
            data = sendable
        self.handle(Event.OUTPUT, data)

    def reject_head(self) -> None:
        """Refuse a response whose head has no end: X-Switch withholds no more of it."""
        self.withheld_head = b""
        self.fail(502, f"its head has more than {MAX_HEAD_BYTES} bytes: an empty line must follow its fields")
        assert self.engine is not None
        self.engine.discard("killed: the head of its response had no end")

    def complete(self, data: bytes, status: int) -> None:
        """Send the rest of the response, and end the exchange. status: the script's exit status."""
        if self.state in HEAD_NOT_SENT:
            data = without_own_field(self.withheld_head, data, is_last=True, is_far=self.is_far) or b""
            if not data:
                self.fail(502, f"it wrote nothing (exit status {status})")
                return
        self.handle(Event.COMPLETED, data, status)

    def engine_failed(self, cause: str) -> None:
        """Repeat the request on another engine if that is safe, else end with an error."""
        if self.may_repeat():
            self.handle(Event.RETRIED, cause)
        else:
            self.fail(502, cause)

    def engine_was_dead(
        self, body_pieces: Sequence[bytes] = (), cause: str = "its engine had ended while it was idle"
    ) -> None:
        """Give the request to another engine, even a POST: this engine had ended before the request came.

        body_pieces: the part of the body that take_body() has returned, for the other engine. cause: for the log.
        """
        self.body_pieces[:0] = body_pieces
        self.body_pieces_bytes += sum(map(len, body_pieces))
        if self.body_pieces_bytes > MAX_WAITING_BYTES:
            self.pause_body()
        if self.attempts < MAX_UNREAD_ATTEMPTS and not self.services.is_stopping:
            self.handle(Event.RETRIED, cause)
        else:
            self.fail(502, cause)

    def may_repeat(self) -> bool:
        """Return whether another engine may get the request: no byte was sent, and its method is safe to repeat."""
        return (
            self.state in HEAD_NOT_SENT
            and self.attempts < MAX_ATTEMPTS
            and self.params.get(b"REQUEST_METHOD") in SAFE
            and self.params.get(b"CONTENT_LENGTH") in (None, b"", b"0")
            and not self.services.is_stopping
        )

    def timed_out(self, cause: str) -> None:
        """End: the engine was closed because its deadline has passed. cause: which deadline, for the log."""
        if self.state is ABANDONED:
            self.handle(Event.OVERDUE)
        else:
            self.services.counters["timed_out"] += 1
            self.fail(504, cause)

    # Actions: the third column of the table

    def do_nothing(self, *_: object) -> None:
        """No response can be sent yet, or no client is left to receive one."""

    def enter_queue(self) -> None:
        """Give the exchange to the scheduler."""
        self.queued_at = time.monotonic()
        self.services.scheduler.submit(self)

    def enter_queue_again(self, cause: str) -> None:
        """Give the exchange to the scheduler a second time; reset it, except for `attempts`."""
        self.services.counters["retried"] += 1
        self.services.log_for_user(self.user, f"{self.script}: {cause}; trying once more on another engine")
        self.withheld_head = b""
        self.output_bytes = 0
        # Pieces that no engine has taken are still there. If there are none, the request had no body (may_repeat).
        if not self.body_pieces and self.body_state is COMPLETE:
            self.body_pieces = [b""]  # the end of the body, for the second engine
        self.enter_queue()

    def leave_queue(self) -> None:
        self.services.scheduler.withdraw(self)

    def leave_queue_with_error(self, status: int, cause: str, field_value: str) -> None:
        self.services.scheduler.withdraw(self)
        self.send_error(status, cause, field_value)

    def note_engine(self, engine: ScriptRunner) -> None:
        self.engine = engine
        self.attempts += 1

    def send(self, data: bytes) -> None:
        self.client.send_output(data)

    def send_last(self, data: bytes, status: int) -> None:
        self.client.end_response(data, status)

    def send_error(self, status: int, cause: str, field_value: str = REFUSED) -> None:
        """Send an error page: no byte was sent yet."""
        self.log_failure(status, cause, field_value)
        self.client.end_response(error_page(status, field_value), 0)

    def break_off(self, status: int, cause: str, field_value: str) -> None:
        """Close the connection within the response. It is too late for an error page with this status."""
        self.services.counters["cut"] += 1
        self.services.log_for_user(self.user, f"{self.script}: cut within its response, {cause}")
        self.client.break_off()

    def log_failure(self, status: int, cause: str, field_value: str) -> None:
        """Log and count an exchange that ends with an error page."""
        if field_value == NO_ENGINE:
            self.services.counters["no_engine"] += 1
            self.services.log_for_user(
                self.user, f"{self.script}: {cause}; the web server may run it itself", "info"
            )
        else:
            self.services.counters[f"status_{status}"] += 1
            self.services.log_for_user(self.user, f"{self.script}: {status}, {cause}")

    def log_unseen_failure(self, status: int, cause: str, field_value: str) -> None:
        """Log a failure after the client has left: no one can receive `status`."""
        self.services.counters["abandoned"] += 1
        self.services.log_for_user(self.user, f"{self.script}: its client had left; {cause}", "info")

    def log_overdue(self) -> None:
        """Log and count a script that was ended some time after its client had left."""
        self.services.counters["abandoned"] += 1
        self.services.log_for_user(
            self.user, f"{self.script}: its client left, and it was ended (abandoned)", "info"
        )

    def let_engine_end(self) -> None:
        """Give the engine time to end the script, or close it if the rest of the body will never come."""
        assert self.engine is not None
        if self.body_state is COMPLETE:
            # Read on, and drop the output: a full socket would stop the script
            self.engine.resume_output()
            self.engine.client_left()
        else:
            self.engine.fail("the client left before its body was complete")


# TABLE, with the methods in place of their names: handle() takes a step by one look-up.
STEPS: dict[tuple[State, Event], tuple[State, Callable[..., None]]] = {
    pair: (state, getattr(Exchange, action)) for pair, (state, action) in TABLE.items()
}
