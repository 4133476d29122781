"""X-Switch, figure 5: Java."""

from ewe.lab.experiments.xswitch_tables import figure

EXPERIMENT = figure(5, "Java", "Tomcat", "xswitch java", "tomcat java")
