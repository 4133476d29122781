"""EWE, table 5: 128 KB."""

from ewe.lab.experiments.ewe_tables import HELD_BY_TIME, Printed, experiment

PRINTED = Printed(
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
EXPERIMENT = experiment(
    PRINTED,
    "The wire (7.7 MB/s) is the limit: Apache, fork and thread are equal.",
    quick=False,
    link="100mbit",
    errata=(
        "“cr” (48 of Apache's errors) is not in the legend.",
        "“67”, the thread model's errors, is printed without a type.",
        HELD_BY_TIME,
    ),
)
