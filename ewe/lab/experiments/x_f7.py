"""X-Switch, figure 7: Perl."""

from ewe.lab.experiments.xswitch_tables import figure

EXPERIMENT = figure(7, "Perl", "FastCGI", "xswitch perl", "fcgi perl", "cgi perl")
