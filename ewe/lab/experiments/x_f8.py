"""X-Switch, figure 8: Python."""

from ewe.lab.experiments.xswitch_tables import figure

EXPERIMENT = figure(8, "Python", "mod_python", "xswitch python", "uwsgi python", "cgi python")
