"""What each experiment takes with --quick, in seconds, as measured on two cores: for the time left, no more."""

QUICK_SECONDS = {
    "E-T1": 5, "E-T2": 60, "E-T3": 60, "E-T4": 44, "E-T5": 66, "E-F1": 165, "E-F2": 182, "E-C1": 11, "E-C2": 48,
    "E-C3": 10, "E-C4": 27, "X-F4": 60, "X-T1": 17, "X-F5": 30, "X-F6": 25, "X-F7": 35, "X-F8": 35, "X-T2": 125,
    "X-C1": 13, "X-C2": 20, "R-C1": 5, "R-F5": 60, "R-F7": 50, "R-F8": 32,
    "R-F9": 4, "R-T1": 9, "R-C2": 20, "T-A6": 12, "T-A7": 2, "T-A8": 26, "T-ST1": 67, "T-ST1k": 73, "T-ST1w": 60,
    "T-A9": 15, "T-A10": 20, "L-T1": 12, "L-X1": 6, "L-T2": 10, "L-T3": 40, "L-C1": 6, "L-F1": 16, "L-C2": 9,
    "T-ST1b": 70, "T-ST2": 56, "T-ST2w": 60, "T-ST3": 48, "T-DT1": 34, "T-DT1a": 40, "T-DT1w": 40, "T-DT1c": 46,
    "T-DT2": 38, "T-DT2s": 60, "T-DT3": 45, "T-DT4": 43, "T-HS1": 49, "T-HS1p": 61, "T-HS2": 80, "T-HS3": 90,
    "T-A12": 22, "T-LD": 240, "GROW": 77, "SLOW": 38, "APPS": 28,
}  # fmt: skip
