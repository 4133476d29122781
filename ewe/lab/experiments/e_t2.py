"""EWE, table 2: 64 bytes."""

from ewe.lab.experiments.ewe_tables import HELD_BY_TIME, Printed, experiment

PRINTED = Printed(
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
)
EXPERIMENT = experiment(
    PRINTED,
    "Serial and the pool lose most of their clients; fork beats thread, loses nobody and comes nearest to Apache.",
    quick=True,
    errata=(
        "Apache's replies are printed as 100000, for 10000 requests.",
        "Apache's reply rate (1663.8) is above its request rate (1012.8).",
        HELD_BY_TIME,
    ),
)
