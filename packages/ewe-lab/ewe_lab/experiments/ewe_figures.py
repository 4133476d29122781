"""What EWE (2006) printed: tables 2 to 5, and figures 1 and 2. ewe_tables.py and ewe_sweeps.py say how they run."""

from ewe_lab.bench.results import Table
from ewe_lab.bench.verdicts import FAILS, HOLDS, LEVEL, NOT_TESTABLE, Finding
from ewe_lab.experiments import ewe_sweeps, ewe_tables
from ewe_lab.experiments.ewe_tables import HELD_BY_TIME, Printed

# table 2: 64 bytes.

E_T2_PRINTED = Printed(
    table=2,
    size=64,
    calls=10,
    lines=(
        (1000, 1000, 1000, 1000, 1000),
        (10000, 1145, 10000, 9784, 2270),
        (100000, 1140, 10000, 9760, 2270),
        (9.873, 251.709, 46.421, 59.8, 189.9),
        (101.3, 4, 21.5, 16.7, 5.3),
        (1012.8, 4.5, 215.4, 163.5, 11.9),
        (1663.8, 4.6, 218.5, 177.5, 11.9),
        (68.7, 2142.9, 82.4, 933.7, 101.1),
        (426.3, 1.4, 65.4, 49.6, 3.6),
    ),
    errors=("0", "881 st, 5 res", "0", "24 res", "773 ct"),
    misprints={("replies", "Apache"): 10000, ("reply rate", "Apache"): 1012.8},
)
E_T2 = ewe_tables.experiment(
    E_T2_PRINTED,
    "Serial and the pool lose most of their clients; fork beats thread, loses nobody and comes nearest to Apache.",
    quick=True,
    errata=(
        "Apache's replies are printed as 100000, for 10000 requests. They are compared as 10000.",
        "Apache's reply rate (1663.8) is above its request rate (1012.8). It is compared as 1012.8.",
        HELD_BY_TIME,
    ),
)


# table 3: 1 KB.

E_T3_PRINTED = Printed(
    table=3,
    size=1024,
    calls=10,
    lines=(
        (1000, 1000, 1000, 1000, 1000),
        (10000, 1232, 10000, 9163, 2410),
        (10000, 1230, 10000, 9070, 2410),
        (10.260, 218.798, 46.494, 73.041, 189.987),
        (97.5, 4.6, 21.5, 13.7, 5.3),
        (974.7, 5.6, 215.1, 125.4, 12.7),
        (927.1, 5.7, 219.3, 129.1, 13.0),
        (58.7, 979.2, 96.0, 1071.5, 110.1),
        (1310.7, 5.9, 263.8, 152.4, 15.6),
    ),
    errors=("0", "875 st", "0", "93 res", "759 st"),
)
E_T3 = ewe_tables.experiment(
    E_T3_PRINTED,
    "As with 64 bytes: serial and the pool lose three clients in four; fork serves 1.72 times what thread does.",
    quick=True,
    errata=(HELD_BY_TIME,),
)


# table 4: 16 KB.

E_T4_PRINTED = Printed(
    table=4,
    size=16384,
    calls=5,
    lines=(
        (1000, 1000, 1000, 1000, 1000),
        (5000, 3609, 5000, 5000, 4988),
        (5000, 3385, 5000, 5000, 4985),
        (11.062, 246.5, 22.211, 34.387, 59.706),
        (90.4, 4.1, 45, 29.1, 16.7),
        (452, 14.6, 224.1, 145.3, 83.5),
        (429.0, 13.8, 246.8, 166.3, 88.5),
        (210.5, 2298.4, 280.6, 836.6, 906.6),
        (7270.5, 219.0, 3588.6, 2317.3, 1331),
    ),
    errors=("0", "99 st, 224 cr", "0", "0", "3 res"),
)
E_T4 = ewe_tables.experiment(
    E_T4_PRINTED,
    "With fewer and larger answers the thread model loses nobody any more, and fork is at half of Apache's rate.",
    quick=False,
    link="100mbit",
    errata=("“cr” (224 of basic's errors) is not in the legend.",),
)


# table 5: 128 KB.

E_T5_WIRE = 12_500_000 / 1024  # KB/s that 100 Mbit/s can carry
E_T5_FULL = 0.6  # of the wire, as in 2006: 7,681 KB/s

E_T5_PRINTED = Printed(
    table=5,
    size=131072,
    calls=3,
    lines=(
        (1000, 1000, 1000, 1000, 1000),
        (2904, 1263, 2858, 2866, 1701),
        (2856, 1092, 2787, 2799, 1701),
        (46.819, 247, 46.03, 46.32, 189.9),
        (21.4, 4, 21.7, 21.6, 5.3),
        (62.0, 5.1, 62.1, 61.9, 9.0),
        (61.1, 4.5, 61.8, 61.5, 9.0),
        (2049.1, 5852.6, 1303.2, 1011.5, 426.2),
        (7680.8, 556.1, 7615.9, 7601, 1126.2),
    ),
    errors=("48 cr", "465 st, 171 res", "71 res", "67", "433 st"),
)
E_T5 = ewe_tables.experiment(
    E_T5_PRINTED,
    "The wire (7.7 MB/s) is the limit: Apache, fork and thread are equal.",
    quick=False,
    link="100mbit",
    errata=(
        "“cr” (48 of Apache's errors) is not in the legend.",
        "“67”, the thread model's errors, is printed without a type.",
        HELD_BY_TIME,
    ),
)


def check_network(table: Table) -> Finding:
    """The claim is about the line Net I/O: the wire is full, and the servers that fill it are equal."""
    column = f"{ewe_tables.PRINTED}: net I/O"
    found = {cell.server: cell.median for cell in table.cells if cell.column == column and cell.median}
    apache, others = found.get("apache-prefork"), [found.get(name) for name in ("fork", "thread")]
    if not apache or not all(others):
        return Finding(NOT_TESTABLE, "Apache, fork and thread were not all measured.")
    three = [apache, *(value for value in others if value)]
    told = ", ".join(f"{value:,.0f}" for value in three)
    word = HOLDS if max(three) <= LEVEL * min(three) and min(three) >= E_T5_FULL * E_T5_WIRE else FAILS
    return Finding(
        word, f"As printed, Apache, fork and thread sent {told} KB/s; the wire carries {E_T5_WIRE:,.0f}."
    )


# figure 1: what a server answers of what it is asked, 10 requests on a connection.

E_F1 = ewe_sweeps.experiment("E-F1", "figure 1", calls=10, minutes=9.0)


# figure 2: what a server answers of what it is asked, one request on a connection.

E_F2 = ewe_sweeps.experiment("E-F2", "figure 2", calls=1, minutes=9.0)


EXPERIMENTS = (E_T2, E_T3, E_T4, E_T5, E_F1, E_F2)
CHECKS = {"E-T5": check_network, "E-F1": ewe_sweeps.check, "E-F2": ewe_sweeps.check}
