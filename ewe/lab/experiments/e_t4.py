"""EWE, table 4: 16 KB."""

from ewe.lab.experiments.ewe_tables import Printed, experiment

PRINTED = Printed(
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
EXPERIMENT = experiment(
    PRINTED,
    "With fewer and larger answers the thread model loses nobody any more, and fork is at half of Apache's rate.",
    quick=False,
    link="100mbit",
    errata=("“cr” (224 of basic's errors) is not in the legend.",),
)
