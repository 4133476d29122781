"""The settings of proxies: of the servers behind ewe (proxy.py), and of proxies before it (trusted_proxies.py)."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import BOOL, NETWORKS, PROXIES, UPGRADES, WAIT, choice

# fmt: off
PROXY = Setting((), PROXIES, "another HTTP server and the path below which it answers: /app=http://127.0.0.1:3000"
                " or /app=unix:/run/app.sock; may be repeated; the addresses of one path are used in turn",
                group="proxies", key="proxy", after="max-body")
PROXY_KEEP = Setting(True, BOOL, "keep connections to these servers open for the next request", group="proxies",
                     key="proxy-keep", after="proxy")
PROXY_TIMEOUT = Setting(60.0, WAIT, "how long such a server may be silent (504)", group="proxies",
                        key="proxy-timeout", after="proxy-keep")
PROXY_HOST = Setting("client", choice("client", "server"), "the Host that such a server sees: the client's, or"
                     " its own address", group="proxies", key="proxy-host", after="proxy-timeout")
PROXY_UPGRADE = Setting(("websocket",), UPGRADES, "a protocol to which a client and such a server may switch;"
                        " may be repeated; empty: none", group="proxies", key="proxy-upgrade", after="proxy-host")
PROXY_IDLE = Setting(300.0, WAIT, "how long both may be silent after that", group="proxies",
                     key="proxy-idle", after="proxy-upgrade")
TRUSTED_PROXIES = Setting((), NETWORKS, "a proxy in front of ewe that may name its client: an address, a"
                          " network such as 10.0.0.0/8, or unix for Unix sockets; may be repeated",
                          group="proxies", scope="server", key="trusted-proxies", after="proxy-idle")
TRUSTED_FIELDS = Setting("x-forwarded", choice("x-forwarded", "forwarded"), "the fields in which these proxies"
                         " name it: X-Forwarded-For, -Proto, -Host and -Port, or Forwarded (RFC 7239)",
                         group="proxies", scope="server", key="trusted-fields", after="trusted-proxies")
# fmt: on
OF_NEXT_SERVERS = PROXY, PROXY_KEEP, PROXY_TIMEOUT, PROXY_HOST, PROXY_UPGRADE, PROXY_IDLE
OF_TRUSTED_PROXIES = TRUSTED_PROXIES, TRUSTED_FIELDS
SETTINGS = (*OF_NEXT_SERVERS, *OF_TRUSTED_PROXIES)
