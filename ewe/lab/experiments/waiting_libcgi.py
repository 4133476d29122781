"""LibCGI: what waits for programs that run inside the server."""

from ewe.lab.experiment import Experiment
from ewe.lab.experiments.waiting import Waiting, cells, joined

NEEDS = "LibCGI (programs called as a library) and a FastCGI gateway"
MACHINE = {
    "server": "Pentium 200, 32 MB, Linux 2.0.34, Apache 1.2.5",
    "client": "ab, 1000 requests, 30 at once",
    "network": "Ethernet, 10 and 100 Mbit/s",
}
SIZES = (28, 1024, 10_240, 102_400)
KINDS = ("CGI", "FastCGI", "LibCGI", "Web server")
TABLE_2 = ((8.2, 5.0, 1.3), (8.6, 5.3, 1.6), (11.6, 7.5, 2.4), (75, 71, 63))  # ms, by size
TABLE_3 = {  # requests a second by link: rows by size, then CGI, FastCGI, LibCGI, Web server
    "10 Mbit/s": ((88, 162, 320, 323), (81, 151, 278, 285), (52, 72, 85, 86), (9, 10, 10, 10)),
    "100 Mbit/s": ((98, 193, 448, 460), (92, 188, 431, 436), (76, 130, 312, 315), (38, 47, 88, 89)),
}
FACTORS = "The abstract's “3.9 to 4.6 times” is, by table 3, 4.57, 4.68 and 4.11 to 10 KB."

WAITING: tuple[Waiting, ...] = (
    (
        Experiment(
            id="L-T1",
            document="LibCGI",
            source="table 1",
            title="What it costs to start a CGI program",
            claim="Starting a program costs 7.18 ms, most of it exec.",
            varies="the step",
            measures="time of each step",
            quick=True,
            needs="the lab's own measurement of fork, exec and pipe",
            machine=MACHINE,
        ),
        cells({"fork": 998, "exec": 5250, "IPC": 932, "total": 7180}, "", "µs"),
    ),
    (
        Experiment(
            id="L-X1",
            document="LibCGI",
            source="section 2.1",
            title="What it costs to call a FastCGI program",
            claim="A FastCGI call costs 3.65 ms: control 1.9, communication 1.4, protocol 0.35.",
            varies="the step",
            measures="time of each step",
            needs="an engine's socket to take apart (X-Switch)",
            machine=MACHINE,
        ),
        cells({"control": 1.9, "IPC": 1.4, "protocol": 0.35, "total": 3.65}, "", "ms"),
    ),
    (
        Experiment(
            id="L-T2",
            document="LibCGI",
            source="table 2",
            title="How long a request takes inside the server",
            claim="LibCGI is 6.3 times faster than CGI and 3.8 times faster than FastCGI; with size that vanishes.",
            varies="size, way to call a program",
            measures="request handling time in the server",
            quick=True,
            needs=NEEDS,
            machine=MACHINE,
        ),
        joined(
            cells(dict(zip(KINDS, row, strict=False)), "", "ms", size)
            for size, row in zip(SIZES, TABLE_2, strict=True)
        ),
    ),
    (
        Experiment(
            id="L-T3",
            document="LibCGI",
            source="table 3",
            title="Throughput by size and link",
            claim="LibCGI answers 2.3 times as much as FastCGI and 4 to 4.7 times as much as CGI, within 3 % "
            "of a static file; at 100 KB over 10 Mbit/s all are equal.",
            varies="size, link, way to call a program",
            measures="requests a second",
            quick=True,
            needs=NEEDS,
            errata=(FACTORS,),
            machine=MACHINE,
        ),
        joined(
            cells(dict(zip(KINDS, row, strict=True)), link, "req/s", size)
            for link, rows in TABLE_3.items()
            for size, row in zip(SIZES, rows, strict=True)
        ),
    ),
    (
        Experiment(
            id="L-C1",
            document="LibCGI",
            source="section 5",
            title="The first call of a library",
            claim="Loading a program as a library costs 400 µs, once.",
            varies="first or later call",
            measures="time of a call",
            needs=NEEDS,
            machine=MACHINE,
        ),
        cells({"loading": 400}, "", "µs"),
    ),
    (
        Experiment(
            id="L-F1",
            document="LibCGI",
            source="figure 1",
            title="A library that fails",
            claim="An endless loop is cut by a timeout and a segmentation fault is caught; the library is "
            "unloaded and the client gets status 500.",
            varies="the fault",
            measures="requests lost, time to recover",
            needs=NEEDS,
            machine=MACHINE,
        ),
        (),
    ),
    (
        Experiment(
            id="L-C2",
            document="LibCGI",
            source="section 4.2",
            title="Looking up the client's name",
            claim="Finding REMOTE_HOST can take seconds.",
            varies="reverse lookups on or off",
            measures="response time",
            needs="reverse lookups, which ewe does not do, and a slow name server",
            machine=MACHINE,
        ),
        (),
    ),
)
