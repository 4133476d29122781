"""The site is there under every model."""

from __future__ import annotations

import signal

from support import web
from support.server import Server


def test_a_page_and_a_clean_stop(server: Server) -> None:
    response = web.get(server.url)
    assert response.status_code == 200
    assert "welcome" in response.text
    assert server.stop(signal.SIGTERM) == 0, server.log()
