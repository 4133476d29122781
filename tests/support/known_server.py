"""A web server whose behaviour is known: `python known_server.py BEHAVIOUR ...`, a port for each.

Writes the ports on one line of its output. What a measurement says of it can be checked against what it does.
`KnownServers` is for tests: one process has all behaviours but "frozen", which would hold up the others.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import time
from functools import partial

BODY = b"x" * 1000
DELAY = 0.05
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + BODY
ANSWERS = {
    "plain": WHOLE,
    "delay": WHOLE,
    "frozen": WHOLE,
    "status": b"HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nno\n",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"1F4;a=b\r\n" + BODY[:500] + b"\r\n001f4\r\n" + BODY[500:] + b"\r\n0\r\nA-Trailer: yes\r\n\r\n",
    "until-close": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "old": b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n" + BODY,
    "close": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n" + BODY,
    "early": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + WHOLE,
    "cut": WHOLE[:-500],
    "cut-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1F4\r\n" + BODY[:200],
    "cut-head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "short": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789",
    "nonsense": b"this is no HTTP at all\r\n\r\n",
    "trickle": WHOLE,
    "leaves": WHOLE,  # and closes without having said so
    "paths": WHOLE,  # but for /missing
    "fades": WHOLE,  # the first answer only: the second is cut
}
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
BEHAVIOURS = (*(name for name in ANSWERS if name != "frozen"), "silent", "reset")
CLOSES = {"leaves", "until-close", "old", "close", "cut", "cut-chunk", "cut-head", "nonsense"}


async def answer(behaviour: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hold one conversation."""
    try:
        answered = 0
        while head := await reader.readuntil(b"\r\n\r\n"):
            if behaviour == "silent":
                await asyncio.sleep(3600)
            if behaviour == "reset":
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return
            if behaviour == "delay":
                await asyncio.sleep(DELAY)
            if behaviour == "trickle":  # never silent for long, and never done in time
                for byte in ANSWERS["trickle"]:
                    if writer.is_closing():
                        return
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.1)
            lacks = behaviour == "paths" and head.startswith(b"GET /missing ")
            behaviour = "cut" if behaviour == "fades" and answered else behaviour
            writer.write(MISSING if lacks else ANSWERS[behaviour])
            answered += 1
            if behaviour in CLOSES:
                break
        await writer.drain()
        writer.close()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def freeze() -> None:
    """Stand still for 1 s in every 4."""
    while True:
        await asyncio.sleep(3)
        time.sleep(1)


async def main(behaviours: list[str]) -> None:
    """Serve for ever."""
    servers = [
        await asyncio.start_server(partial(answer, behaviour), "127.0.0.1", 0, backlog=4096)
        for behaviour in behaviours
    ]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    if behaviours == ["frozen"]:
        await freeze()
    await asyncio.Event().wait()


class KnownServers:
    """Known servers for the tests of a file, started when the first is asked for. `known("delay")` is a URL."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.ports: dict[str, int] = {}

    def __call__(self, behaviour: str) -> str:
        """Return the URL of the server that behaves so."""
        if behaviour not in self.ports:
            self.start(["frozen"] if behaviour == "frozen" else list(BEHAVIOURS))
        return f"http://127.0.0.1:{self.ports[behaviour]}/"

    def start(self, behaviours: list[str]) -> None:
        """Start a process for these."""
        process = subprocess.Popen([sys.executable, __file__, *behaviours], stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        self.ports.update(zip(behaviours, map(int, process.stdout.readline().split()), strict=True))

    def close(self) -> None:
        """End all."""
        for process in self.processes:
            with process:
                process.kill()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
