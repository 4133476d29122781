"""Engines that start although no request waits for them: primed ones, and replacements of restarted ones.

Both need a script: suexecme starts an engine only for the owner of a script that may run now. The script is
therefore identified again, as for a request. The engine starts if the script's owner and language are still those
of the key.
"""

from __future__ import annotations

from collections.abc import Callable

from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import Engine
from ewe.xswitch.switch.engine_starter import EngineStarter
from ewe.xswitch.switch.identify import Answer, Identifier, RefusedScript, file_signature
from ewe.xswitch.switch.primer import Primer
from ewe.xswitch.switch.scheduler import Key


class EarlyStarts:
    """Starts idle engines. primer: says which ones the visitors of a usual day will need; None without `prime`."""

    def __init__(self, context: Context, identifier: Identifier, starter: EngineStarter) -> None:
        self.context = context
        self.scheduler = context.scheduler
        self.identifier = identifier
        self.starter = starter
        self.primer: Primer | None = None
        if context.settings.prime:
            self.primer = Primer(context.settings.prime, self.scheduler, self.prime, context.log)
        self.scheduler.replace = self.start_replacement

    def tick(self) -> None:
        """Prime engines that are missing, unless this process stops. Called a few times a second."""
        if self.primer is not None and not self.context.is_stopping:
            self.primer.tick()

    def stop(self) -> None:
        """Save the profile of use: this process stops."""
        if self.primer is not None:
            self.primer.save()

    def prime(
        self, key: Key, script: str, on_decided: Callable[[bool], None], for_visitors: bool = True
    ) -> None:
        """Start an idle engine for a key (user, language), if suexecme says that the script still belongs to it.

        on_decided: called with False if the script must not run any more, else with True (primer.Start).
        for_visitors: count the engine as primed; False: it replaces one that was restarted.
        """

        def identified(answer: Answer) -> None:
            """Start the engine if the script's owner and language are still those of the key."""
            if isinstance(answer, RefusedScript):
                # 503: suexecme has not answered in time. The script may still be allowed to run
                on_decided(answer.status == 503)
                return
            self.scheduler.limits.note_groups(answer.user, answer.groups)
            if answer.kind is None or (answer.user, answer.kind.name) != key:
                on_decided(False)
                return
            if self.scheduler.may_prime(key) and not self.context.is_stopping:
                engine = self.starter.start_idle(key, answer.kind, answer.path, answer.uid)
                if engine is not None:
                    self.scheduler.add_idle(engine)
                    self.context.counters["primed"] += for_visitors
            on_decided(True)

        self.identifier.identify(script, file_signature(script), identified)

    def start_replacement(self, engine: Engine) -> None:
        """Start an engine in place of one that was restarted; none if its script must not run any more."""
        if engine.script and not self.context.is_stopping:
            self.prime(engine.key, engine.script, lambda may_still_run: None, for_visitors=False)
