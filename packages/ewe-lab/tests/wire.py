"""A switch for Ethernet in a process, with links that are slow, late and lossy: `python wire.py NAMESPACE...`.

It makes a TAP device `eth0` in each named network namespace. A frame that a machine sends arrives after the time
that its bytes take at RATE (behind those that wait already) and DELAY_S, or not at all with the chance LOSS. tc
netem does the same in the kernel, but many kernels, such as those of small virtual machines, are built without it.

The process wakes late on a busy machine, so a delay is a least one. It forwards some 50,000 frames/s.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

RATE = 1e9  # bits a second
DELAY_S = 0.001  # each way
LOSS = 0.001
QUEUE_S = 0.05  # the longest that a frame waits for those before it; later ones are dropped
FRAME_BYTES = 65536
BROADCAST = 1  # the bit of the first byte of an address for many
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def tap(namespace: str) -> int:
    """Make the device in a namespace; return its descriptor."""
    space = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(space)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
    return device


def forward(devices: list[int]) -> None:
    """Forward frames for ever."""
    owner: dict[bytes, int] = {}  # address: the device behind which it is
    free = dict.fromkeys(devices, 0.0)  # when the link has sent all that waits
    due: list[tuple[float, int, int, bytes]] = []
    number = 0
    chance = random.Random(2011)
    while True:
        wait = max(due[0][0] - time.monotonic(), 0) if due else None
        for device in select.select(devices, [], [], wait)[0]:
            frame = os.read(device, FRAME_BYTES)
            owner[frame[6:12]] = device
            now = time.monotonic()
            sent = max(free[device], now) + len(frame) * 8 / RATE
            if sent - now > QUEUE_S or chance.random() < LOSS:
                continue
            free[device] = sent
            to = [owner[frame[:6]]] if frame[:6] in owner and not frame[0] & BROADCAST else devices
            for each in to:
                if each != device:
                    number += 1
                    heapq.heappush(due, (sent + DELAY_S, number, each, frame))
        while due and due[0][0] <= time.monotonic():
            _, _, device, frame = heapq.heappop(due)
            try:
                os.write(device, frame)
            except OSError:  # the machine is down, or its queue is full: the frame is lost
                pass


def main() -> None:
    """Make the devices, say so, and forward."""
    devices = [tap(name) for name in sys.argv[1:]]
    print("ready", flush=True)
    forward(devices)


if __name__ == "__main__":
    main()
