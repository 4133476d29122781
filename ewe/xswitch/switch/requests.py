"""A request's way from a web server's connection to the scheduler: its script, the owner, the kind of engine.

begin() ──▶ find_script() ──▶ Identifier ──▶ identified() ──▶ Exchange.identified(): the scheduler
  └──▶ send_far(): the file is on another machine (peers.py)
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ewe.config.defaults import WEB_INF, XSWITCH_STATUS_PATH
from ewe.xswitch.engine_kinds import EngineKind
from ewe.xswitch.packages import VERSIONS
from ewe.xswitch.protocol import ProtocolError
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.exchange import Exchange
from ewe.xswitch.switch.exchange_table import DONE, IDENTIFYING
from ewe.xswitch.switch.identify import (
    MAX_PATH_BYTES,
    Answer,
    IdentifiedScript,
    Identifier,
    RefusedScript,
    Signature,
    file_signature,
    script_file,
    script_path,
)
from ewe.xswitch.switch.installations import Installations
from ewe.xswitch.switch.peers import Peers
from ewe.xswitch.switch.primer import Primer
from ewe.xswitch.switch.response_head import NO_ENGINE
from ewe.xswitch.switch.web_server_connection import BeginExchange, WebServerConnection
from ewe.xswitch.user_limits import NO_LIMITS
from ewe.xswitch.webapp import Applications, NoApplication, WebApplication

STATUS_URL = XSWITCH_STATUS_PATH.encode()


class ScriptRequests:
    """Begins requests, and gives their exchanges to the scheduler."""

    def __init__(
        self,
        context: Context,
        identifier: Identifier,
        peers: Peers,
        begin_status: BeginExchange,
        primer: Primer | None,
    ) -> None:
        """begin_status: begins a request for the status page (StatusRequests.begin). primer: gets each request."""
        self.context = context
        self.identifier = identifier
        self.peers = peers
        self.begin_status = begin_status
        self.primer = primer
        self.applications = Applications()
        self.installations = Installations(context.loop)

    def begin(
        self, client: WebServerConnection, params: dict[bytes, bytes], body: Sequence[bytes]
    ) -> Exchange:
        """Start a request: find its script, then the script's owner.

        body: the pieces received so far; b"" marks the end.
        """
        # One web server sends the URL's path in the first two, another in the third
        if STATUS_URL in (
            params.get(b"SCRIPT_NAME", b"") + params.get(b"PATH_INFO", b""),
            params.get(b"DOCUMENT_URI"),
        ):
            return self.begin_status(client, params, body)
        self.context.counters["requests"] += 1
        file = script_file(params)
        far_kind = self.peers.far_kind_of(file, params) if self.peers.engines else None
        application: WebApplication | None = None
        path, signature = file, Signature()
        try:
            if far_kind is None:
                application, path, signature = self.find_script(file, params)
        except NoApplication as reason:
            exchange = self.context.exchange_class(client, self.context, params, file)
            exchange.fail(reason.status, str(reason))
            return exchange
        exchange = client.new_exchange(params, path, body)
        exchange.application = application
        if exchange.state is DONE:
            return exchange
        if not path:
            exchange.fail(400, "SCRIPT_FILENAME is missing: the web server must send it")
        elif len(os.fsencode(path)) >= MAX_PATH_BYTES:
            exchange.fail(404, "no script: its path is too long")
        elif f"/{VERSIONS}/" in path:
            exchange.fail(404, "no URL names a version of a package: its link does (packages)")
        elif self.context.is_stopping:
            exchange.fail(503, "stopping")
        elif far_kind is not None:
            self.send_far(exchange, far_kind)
        else:
            self.identifier.identify(path, signature, lambda answer: self.identified(exchange, answer))
        return exchange

    def find_script(
        self, file: str, params: dict[bytes, bytes]
    ) -> tuple[WebApplication | None, str, Signature]:
        """Return the web application of a file, the path for suexecme, and its signature. Raises NoApplication."""
        application = self.applications.find(file, params, self.context.settings)
        if application is None:
            return None, *script_path(file, params)
        path = f"{application.directory}/{WEB_INF}"
        return application, path, file_signature(path)

    def find_script_again(self, exchange: Exchange) -> None:
        """Find the script of a waiting request again, and the owner of the script.

        suexecme had found no script while a package of the user was being installed. The package may contain it.
        """
        if exchange.state is not IDENTIFYING:
            return  # the client has left in the meantime
        file = script_file(exchange.params)
        # The cache may still say that no web application contains this file
        self.applications.directories.forget(file)
        try:
            exchange.application, exchange.script, signature = self.find_script(file, exchange.params)
        except NoApplication as reason:
            exchange.fail(reason.status, str(reason))
            return
        self.identifier.identify(
            exchange.script, signature, lambda answer: self.identified(exchange, answer, has_waited=True)
        )

    def send_far(self, exchange: Exchange, kind: EngineKind) -> None:
        """Give an exchange to engines on another machine. The script's owner is known only there."""
        engine = self.peers.engines[kind.name]
        exchange.user, exchange.key = engine.user, engine.key
        exchange.limits = NO_LIMITS
        exchange.is_far = True
        exchange.identified()

    def identified(self, exchange: Exchange, answer: Answer, has_waited: bool = False) -> None:
        """Give an exchange to the scheduler: suexecme has reported the script's owner.

        has_waited: for the end of an installation; it does not wait again.
        """
        if exchange.state is not IDENTIFYING:
            return  # the client has left in the meantime
        if isinstance(answer, RefusedScript):
            if (
                answer.home
                and not has_waited
                and self.installations.wait(answer.home, lambda: self.find_script_again(exchange))
            ):
                return
            exchange.user = answer.user
            exchange.fail(answer.status, answer.reason)
            return
        exchange.user, exchange.uid = answer.user, answer.uid
        # Before the scheduler gets the exchange: it also asks for the limits by the user's name.
        exchange.limits = self.context.scheduler.limits.note_groups(answer.user, answer.groups)
        kind = self.engine_kind_for(exchange, answer)
        if kind is None:
            # NO_ENGINE: the web server may run the script itself
            cause = "no engine for it: neither its directory, its extension nor its first line names one"
            exchange.fail(500, cause, NO_ENGINE)
            return
        if kind.address:
            self.send_far(exchange, kind)
            return
        exchange.script, exchange.own_variables = answer.path, answer.variables
        if exchange.application is not None:
            # answer.path is that of the application's WEB-INF, without links
            exchange.application = exchange.application._replace(directory=os.path.dirname(answer.path))
        exchange.key = (answer.user, kind.name)
        if self.primer is not None:
            self.primer.note_request(exchange.key, answer.path)
        try:
            if kind.protocol == "engine":
                exchange.make_engine_request()
        except ProtocolError as error:
            exchange.fail(431, str(error))
            return
        exchange.identified()

    def engine_kind_for(self, exchange: Exchange, answer: IdentifiedScript) -> EngineKind | None:
        """Return the kind of engine for a script, None if there is none.

        The web server may name it by XSWITCH_ENGINE, as the paper's mod_x does.
        """
        language = exchange.params.get(b"XSWITCH_ENGINE")
        if language:
            return self.context.settings.engines.get(language.decode("latin-1"))
        return answer.kind
