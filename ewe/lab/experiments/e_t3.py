"""EWE, table 3: 1 KB."""

from ewe.lab.experiments.ewe_tables import HELD_BY_TIME, Printed, experiment

PRINTED = Printed(
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
EXPERIMENT = experiment(
    PRINTED,
    "As with 64 bytes: serial and the pool lose three clients in four; fork serves 1.72 times what thread does.",
    quick=True,
    errata=(HELD_BY_TIME,),
)
