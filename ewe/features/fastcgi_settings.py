"""The settings of FastCGI, SCGI and uwsgi: of responders (fastcgi.py), and of authorizers (authorizers.py)."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import (
    AUTHORIZERS,
    BOOL,
    COOKIE,
    COUNT_OR_0,
    PROGRAMS,
    RESPONDERS,
    WAIT,
    duration,
    unset,
)

# fmt: off
FASTCGI = Setting((), RESPONDERS, "a FastCGI responder and what it answers for: files with an extension"
                  " (.php=unix:/run/php.sock) or all below a path (/app=127.0.0.1:9000); may be repeated; the"
                  " addresses of one extension or path are used in turn", group="programs",
                  key="fastcgi", after="libcgi-timeout")
FASTCGI_START = Setting((), PROGRAMS, "a FastCGI program that ewe starts and keeps, what it answers for, and"
                        " how many processes it has: .php=4:php-cgi; may be repeated",
                        group="programs", scope="server", key="fastcgi-start", after="fastcgi")
SCGI = Setting((), RESPONDERS, "the same for a program that speaks SCGI; may be repeated", group="programs",
               key="scgi", after="fastcgi-start")
UWSGI = Setting((), RESPONDERS, "the same for a program that speaks uwsgi, such as uWSGI; may be repeated",
                group="programs", key="uwsgi", after="scgi")
FASTCGI_KEEP = Setting(False, BOOL, "keep connections to FastCGI responders open for the next request: faster,"
                       " but each open connection holds a child of php-fpm", group="programs", scope="location",
                       key="fastcgi-keep", after="uwsgi")
FASTCGI_RETRY = Setting(10.0, duration(0), "how long an address of a responder with several is left out"
                        " once it cannot be reached", group="programs", scope="location",
                        key="fastcgi-retry", after="fastcgi-keep")
FASTCGI_AFFINITY = Setting(None, unset(COOKIE), "the name of a cookie by which a client goes again to the same"
                           " address of a responder with several; empty: none",
                           group="programs", scope="location", key="fastcgi-affinity", after="fastcgi-retry")
FASTCGI_CONNECTIONS = Setting(0, COUNT_OR_0, "the largest number of connections that a process opens to one"
                              " address of a responder; further requests wait in a queue; 0: no limit",
                              group="programs", scope="location",
                              key="fastcgi-connections", after="fastcgi-affinity")
FASTCGI_QUEUE_TIMEOUT = Setting(10.0, WAIT, "how long a request waits in that queue (503)", group="programs",
                                was="fastcgi-patience", scope="location",
                                key="fastcgi-queue-timeout", after="fastcgi-connections")
FASTCGI_AUTHORIZER = Setting((), AUTHORIZERS, "a FastCGI authorizer and the path below which it decides who"
                             " gets an answer: /members=unix:/run/auth.sock; may be repeated", group="programs",
                             key="fastcgi-authorizer", after="uwsgi")
# fmt: on
OF_PROTOCOLS = FASTCGI, SCGI, UWSGI
OF_RESPONDERS = (
    *(FASTCGI, FASTCGI_START, SCGI, UWSGI),
    *(FASTCGI_KEEP, FASTCGI_RETRY, FASTCGI_AFFINITY, FASTCGI_CONNECTIONS, FASTCGI_QUEUE_TIMEOUT),
)
SETTINGS = (*OF_RESPONDERS, FASTCGI_AUTHORIZER)
