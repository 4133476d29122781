"""X-Switch, figure 8: Python."""

from ewe.lab.experiments.xswitch_tables import figure

EXPERIMENT = figure(
    8, "Python", "mod_python",
    "xswitch python", "nginx+xswitch python", "uwsgi python", "uwsgi-script python", "cgi python",
)  # fmt: skip
