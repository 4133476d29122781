"""Stacks: the servers to measure, and the programs behind them.

    servers.py        starts ewe or another server on 127.0.0.1, and waits until it listens
    other_servers.py  the other web servers, by name: their packages, and the functions that prepare them
    webservers.py     nginx, Apache, lighttpd (for files or for a program behind them), h2o and Caddy
    tomcat.py         Tomcat, for files, servlets and JSP pages; pythons.py: servers written in Python
    programs.py       the programs, in Python, Perl, PHP and Java
    backends.py       the processes that run programs behind a web server
    databases.py      SQLite, PostgreSQL and the database daemon, with the access log of the RDBMS paper
    reports.py        the report on a database by every gateway, and by every way to the database
    database_ways.py  the scenarios of that paper, and two that are used today (report_servers.py)
    servlets.py       the report on a database as a servlet under X-Switch
    ways.py           a web server together with a way to run a program
    variants.py       processors that work as the EWE of 2006 did
    machine.py        facts about the machine and the versions

Begin with servers.py and webservers.py.
"""
