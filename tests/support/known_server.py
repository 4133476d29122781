"""A web server whose behaviour is known: `python known_server.py BEHAVIOUR`. Writes its port on its output.

What a measurement says of it can be checked against what it does.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time

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
}
CLOSES = {"until-close", "old", "close", "cut", "cut-chunk", "cut-head", "nonsense"}


async def answer(behaviour: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hold one conversation."""
    try:
        while await reader.readuntil(b"\r\n\r\n"):
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
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.1)
            writer.write(ANSWERS[behaviour])
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


async def main(behaviour: str) -> None:
    """Serve for ever."""
    server = await asyncio.start_server(
        lambda reader, writer: answer(behaviour, reader, writer), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    if behaviour == "frozen":
        await freeze()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
