"""What X-Switch (2010) printed: its figures 5 to 8, one for each language."""

from ewe_lab.experiments.xswitch_tables import figure

# figure 5: Java.

X_F5 = figure(5, "Java", "Tomcat", "xswitch java", "tomcat java")


# figure 6: PHP.

X_F6 = figure(6, "PHP", "mod_php", "xswitch php", "nginx+xswitch php", "mod_php php", "php-fpm php")


# figure 7: Perl.

X_F7 = figure(7, "Perl", "FastCGI", "xswitch perl", "fcgi perl", "cgi perl")


# figure 8: Python.

X_F8 = figure(
    8, "Python", "mod_python",
    "xswitch python", "nginx+xswitch python", "uwsgi python", "uwsgi-script python", "cgi python",
)  # fmt: skip


EXPERIMENTS = (X_F5, X_F6, X_F7, X_F8)
