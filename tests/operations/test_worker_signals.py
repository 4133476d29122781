"""What a worker does with a signal that comes while it handles another."""

import dis
import sys
from itertools import pairwise
from types import FrameType, SimpleNamespace
from typing import Any

from ewe.server.worker import SIGNALS, Worker


def test_a_signal_may_come_after_any_call_of_the_handler() -> None:
    """Python runs a handler after a call of another handler: in between, the signals that wait may become more."""
    first, second = [signum for signum, found in SIGNALS.items() if found.waits][:2]
    code = Worker.on_signal.__code__
    steps = list(dis.get_instructions(code))
    for before, after in pairwise(steps):
        if not before.opname.startswith("CALL"):
            continue
        called: list[int] = []
        offsets = [after.offset]
        worker: Any = SimpleNamespace(waiting={}, handles_waiting=False)
        worker.call_method_for = lambda signum, frame, called=called: called.append(signum)

        def trace(
            frame: FrameType, event: str, arg: object, offsets: list[int] = offsets, to: Any = worker
        ) -> Any:
            if frame.f_code is code:
                frame.f_trace_opcodes = True
                if event == "opcode" and frame.f_lasti in offsets:
                    offsets.clear()
                    Worker.on_signal(to, second, None)
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            Worker.on_signal(worker, first, None)
        finally:
            sys.settrace(outer)
        # A call that this way does not pass lets no second signal come.
        assert called == ([first] if offsets else [first, second]), before
