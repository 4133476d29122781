"""A name server that knows one name and may be slow: the stub resolver of experiments.

    with stub_resolver("127.0.53.1", delay_s=1.0):
        ...

It answers every question for a PTR record with NAME, `delay_s` seconds after the question came, and every other one
with "no such name" (RFC 1035 section 4.1). It listens on port 53 of one loopback address, which needs root.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ewe_lab.bench.processes import LabError

NAME = "client.example"
PORT = 53
PTR, INTERNET = 12, 1
POINTER = 0xC000  # RFC 1035 section 4.1.4: the name is the one at this offset of the message
TYPE_AND_CLASS_BYTES = 4
HEADER = struct.Struct("!6H")  # id, flags; the numbers of questions, answers, and two more kinds of records
# The flags: a response, authoritative, recursion wanted and available
ANSWERED, NO_SUCH_NAME = 0x8580, 0x8583


def encode_name(name: str) -> bytes:
    """Return a name as labels with their lengths."""
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def reply_to(question: bytes) -> bytes:
    """Return the answer to a question; b"" if it is not one."""
    if len(question) < HEADER.size + 1 + TYPE_AND_CLASS_BYTES:
        return b""
    message_id, _, count, *_ = HEADER.unpack_from(question)
    end = question.find(b"\0", HEADER.size) + 1 + TYPE_AND_CLASS_BYTES  # one zero byte ends the name
    if count != 1 or end < HEADER.size + 1 + TYPE_AND_CLASS_BYTES or end > len(question):
        return b""
    question_section = question[HEADER.size : end]
    if struct.unpack("!2H", question_section[-TYPE_AND_CLASS_BYTES:]) != (PTR, INTERNET):
        return HEADER.pack(message_id, NO_SUCH_NAME, 1, 0, 0, 0) + question_section
    name = encode_name(NAME)
    record = struct.pack("!HHHIH", POINTER | HEADER.size, PTR, INTERNET, 0, len(name)) + name
    return HEADER.pack(message_id, ANSWERED, 1, 1, 0, 0) + question_section + record


@contextmanager
def stub_resolver(host: str, delay_s: float) -> Iterator[list[bytes]]:
    """Answer at port 53 of `host`, a loopback address, during the block; yield the list of the questions that came.

    delay_s: from the arrival of a question to its answer. Raises LabError if the port cannot be opened.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.bind((host, PORT))
    except OSError as reason:
        sock.close()
        raise LabError(f"no name server can listen at {host}:{PORT}: {reason.strerror}") from None
    questions: list[bytes] = []
    stopped = threading.Event()

    def serve() -> None:
        """Receive questions, and let a timer send each answer, so that a slow one delays no other."""
        while True:
            question, client = sock.recvfrom(512)
            if stopped.is_set():
                return
            questions.append(question)
            timer = threading.Timer(delay_s, send, (reply_to(question), client))
            timer.daemon = True
            timer.start()

    def send(reply: bytes, client: tuple[str, int]) -> None:
        if reply and not stopped.is_set():
            sock.sendto(reply, client)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield questions
    finally:
        stopped.set()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:  # the thread waits in recvfrom()
            waker.sendto(b"", (host, PORT))
        thread.join()
        sock.close()
