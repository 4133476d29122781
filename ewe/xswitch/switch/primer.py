"""Priming: engines are there before the visitors of a usual day come (X-Switch paper, section 6; setting `prime`).

    request ──▶ note_request() ──▶ UseProfile ──▶ expected_engines() now, and LEAD_SECONDS later
                                      │  ▲                │ too few engines of a key
                    end of a slot     ▼  │ start          ▼
                                     FILE            identify a script of the key, then start an idle engine

A primed engine counts towards the limits of its user, and never starts while requests wait or memory is short: it
must not take what a visitor needs. The scheduler keeps as many idle engines as are expected to be busy, and ends
the others after `idle`.

The file belongs to the account of the main process, which replaces it as a whole (rename(2)). Nothing in the file
is trusted: suexecme examines the script again before each start, so that a forged file can only start engines for
scripts that may run.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ewe.logger import ErrorLog
from ewe.xswitch.switch.context import Context
from ewe.xswitch.switch.engine import Engine
from ewe.xswitch.switch.engine_starter import EngineStarter
from ewe.xswitch.switch.identify import Answer, Identifier, RefusedScript, file_signature
from ewe.xswitch.switch.scheduler import Key, Scheduler
from ewe.xswitch.switch.use_profile import SLOT_SECONDS, SLOTS, Damaged, UseProfile, from_values

LEAD_SECONDS = 120.0  # before a slot begins, its engines start
MAX_FILE_BYTES = 16 << 20  # more than a profile with the most keys, scripts and slots
MAX_STARTING = 2  # engines that are being started at once
# Starts for a key in a slot beyond the expected engines: an engine may end at once, again and again
MAX_EXTRA_STARTS = 5

# Called once the start of an engine is decided. The argument says whether the script may still run: False if
# suexecme refuses it, or if its owner or language has changed; else True, even if no engine was started.
OnDecided = Callable[[bool], None]
# Starts an idle engine of a key (user, language) for a script: EarlyStarts.start_primed()
StartEarly = Callable[[Key, str, OnDecided], None]


def local_seconds() -> float:
    """Return the seconds of the local day, counted from the epoch so that they grow from day to day."""
    now = time.time()
    return now + time.localtime(now).tm_gmtoff


def slot_of(seconds: float) -> int:
    """Return the slot of the day, 0 to SLOTS - 1. seconds: of local time (local_seconds())."""
    return int(seconds // SLOT_SECONDS) % SLOTS


class Primer:
    """Keeps the profile, and primes engines."""

    def __init__(
        self,
        file: str,
        scheduler: Scheduler[Any, Any],
        start_early: StartEarly,
        log: ErrorLog,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Read the profile, and let the scheduler keep as many idle engines as the profile expects to be busy.

        file: the path of the profile. clock: instead of local_seconds().
        """
        self.file = file
        self.scheduler = scheduler
        self.start_early = start_early
        self.log = log
        self.clock = clock or local_seconds
        self.profile = UseProfile()
        self.starting: dict[Key, int] = {}  # engines that suexecme has not decided about
        self.starts: dict[Key, int] = {}  # engines that were primed in the present slot
        self.last_second = 0  # the second of the clock in which engines were primed last
        self.current_slots = self.slots_now()  # the present slot, and the slot in LEAD_SECONDS
        self.load()
        self.begin_slot(ran_to_end=False)
        # Now, and not at the end of the first slot: the log names a directory without write permission at once
        self.save()
        scheduler.expected_engines = lambda key: self.profile.expected_engines(key, self.current_slots)

    def slots_now(self) -> tuple[int, int]:
        """Return the present slot, and the slot in LEAD_SECONDS: usually the same one."""
        now = self.clock()
        return slot_of(now), slot_of(now + LEAD_SECONDS)

    def note_request(self, key: Key, script: str) -> None:
        """Note a request in the profile, before it has an engine."""
        busy = self.scheduler.engines_of_key[key] - len(self.scheduler.idle.get(key, ()))
        self.profile.note_request(key, script, busy + 1)

    def tick(self) -> None:
        """At the end of a slot, change the profile and save it; once a second, start missing engines.

        Called a few times a second. No engine starts while requests wait for one.
        """
        self.current_slots = self.slots_now()
        if self.begin_slot(ran_to_end=True):
            self.starts.clear()
            self.save()
        second = int(self.clock())
        if second != self.last_second and not self.scheduler.waiting:
            self.last_second = second
            self.prime()

    def begin_slot(self, ran_to_end: bool) -> bool:
        """End the slot of the profile, unless it is the present one. Return whether a slot began.

        ran_to_end: see UseProfile.end_slot().
        """
        present_number = int(self.clock() // SLOT_SECONDS)
        former_number = self.profile.slot_number
        if former_number == present_number:
            return False
        if former_number is not None:
            self.profile.end_slot(former_number % SLOTS, ran_to_end)
        self.profile.slot_number = present_number
        return True

    def prime(self) -> None:
        """Start engines for keys (user, language) that have too few."""
        for key, use in list(self.profile.keys.items()):
            if sum(self.starting.values()) >= MAX_STARTING:
                return
            running = self.scheduler.engines_of_key[key] + self.starting.get(key, 0)
            expected = self.profile.expected_engines(key, self.current_slots)
            starts = self.starts.get(key, 0)
            if running < expected and starts < expected + MAX_EXTRA_STARTS and self.scheduler.may_prime(key):
                self.starts[key] = starts + 1
                self.start_engine(key, use.scripts[0])  # the script used last

    def start_engine(self, key: Key, script: str) -> None:
        """Start an engine of a key (user, language) for one of its scripts. Forget a script that must not run."""
        self.starting[key] = self.starting.get(key, 0) + 1

        def on_decided(may_still_run: bool) -> None:
            """Stop counting the start; forget the script if it must not run."""
            self.starting[key] -= 1
            if not self.starting[key]:
                del self.starting[key]
            if not may_still_run:
                self.profile.drop_script(key, script)

        self.start_early(key, script, on_decided)

    # The file

    def load(self) -> None:
        """Read the profile. Begin without history if there is no file, or if keep_damaged_file() puts it aside."""
        try:
            # As UTF-8 alone: json would guess the encoding, and Python may not be allowed to read its module
            self.profile = from_values(json.loads(self.read().decode()))
        except FileNotFoundError:
            pass
        except (Damaged, ValueError, RecursionError) as reason:
            self.keep_damaged_file(str(reason))
        except OSError as reason:
            self.keep_damaged_file(str(reason.strerror))

    def keep_damaged_file(self, reason: str) -> None:
        """Rename the file of the profile, which cannot be used, to FILE.damaged; log the reason.

        Without the new name, save() would replace the file, and an administrator could no longer examine it.
        reason: why the file cannot be used.
        """
        new_name = f"{self.file}.damaged"
        try:
            os.replace(self.file, new_name)
            result = f"it is kept as {new_name}"
        except OSError as error:
            result = f"it cannot be kept as {new_name}: {error.strerror}"
        self.log.warning(
            f"{self.file}: {reason}; the profile of use begins without history (prime), and {result}"
        )

    def read(self) -> bytes:
        """Return the content of the file. Raises OSError; Damaged if it is not a file of this account."""
        # O_NONBLOCK: to open a FIFO would wait for its writer
        descriptor = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Damaged("it is no regular file")
            if status.st_uid not in (0, os.geteuid()):
                raise Damaged(f"it belongs to uid {status.st_uid}, not to the account of X-Switch")
            if status.st_size > MAX_FILE_BYTES:
                raise Damaged(f"it is larger than {MAX_FILE_BYTES >> 20} MB")
            return file.read(MAX_FILE_BYTES)

    def save(self) -> None:
        """Replace the file as a whole. Log a failure: priming then goes on without the file."""
        new_file = f"{self.file}.new"
        try:
            with suppress(FileNotFoundError):
                os.unlink(new_file)
            descriptor = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(json.dumps(self.profile.as_values()).encode())
            os.rename(new_file, self.file)
        except OSError as reason:
            self.log.error(
                f"cannot write {self.file}: {reason.strerror}; its directory must belong to the account of X-Switch"
                " (prime, user)"
            )


class EarlyStarts:
    """Starts engines for which no request waits: primed ones, and replacements of restarted ones.

    primer: says which ones the visitors of a usual day will need; None without the setting `prime`.
    """

    def __init__(self, context: Context, identifier: Identifier, starter: EngineStarter) -> None:
        self.context = context
        self.scheduler = context.scheduler
        self.identifier = identifier
        self.starter = starter
        self.primer: Primer | None = None
        if context.settings.prime:
            self.primer = Primer(context.settings.prime, self.scheduler, self.start_primed, context.log)
        self.scheduler.replace = self.start_replacement

    def tick(self) -> None:
        """Prime engines that are missing, unless this process stops. Called a few times a second."""
        if self.primer is not None and not self.context.is_stopping:
            self.primer.tick()

    def stop(self) -> None:
        """Save the profile of use: this process stops."""
        if self.primer is not None:
            self.primer.save()

    def start_primed(self, key: Key, script: str, on_decided: OnDecided) -> None:
        """Start an idle engine that the visitors of a usual day will need, and count it as primed."""
        self.start_early(key, script, on_decided, "primed")

    def start_early(self, key: Key, script: str, on_decided: OnDecided, counter: str = "") -> None:
        """Start an idle engine for a key (user, language), if suexecme says that the script still belongs to it.

        counter: the name under which a started engine is counted, "" for none.
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
                    if counter:
                        self.context.counters[counter] += 1
            on_decided(True)

        self.identifier.identify(script, file_signature(script), identified)

    def start_replacement(self, engine: Engine) -> None:
        """Start an engine in place of one that was restarted; none if its script must not run any more."""
        if engine.script and not self.context.is_stopping:
            self.start_early(engine.key, engine.script, on_decided=lambda may_still_run: None)
