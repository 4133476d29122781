"""X-Switch, figure 6: PHP."""

from ewe.lab.experiments.xswitch_tables import figure

EXPERIMENT = figure(6, "PHP", "mod_php", "xswitch php", "nginx+xswitch php", "php-fpm php")
