"""The profile of use: how many engines of each user and language were busy at each time of a usual day.

A day has 96 slots of 15 minutes. For each key (user, language) the profile has a peak for each slot: how many
engines were busy at once. At the end of a slot the peak of today changes that of the usual day by a quarter:

    usual = usual + (today − usual) / 4           the first use in a slot counts in full

A habit is thus known after one day, survives a weekend without use (1.0, 0.75, 0.56), and no engine is primed after
the third day. The peak is rounded to the number of engines that are expected to be busy.

The stored form has the peaks of today, too, with the number of their slot. After a restart in the same slot they
count on. After a later restart the slot has ended without X-Switch: its peaks of today then only raise those of the
usual day, because the needs of the rest of the slot are not known.

No I/O and no clock: the caller names the slot. primer.py has both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

SLOTS = 96  # of a day
SLOT_SECONDS = 86_400 // SLOTS
TODAYS_WEIGHT = 0.25  # of today
MIN_PEAK = 0.1  # a smaller peak is dropped
MAX_KEYS = 1000  # users and languages; a new one then replaces the one with the smallest peaks
MAX_SCRIPTS = 4  # of each key, the one used last first
MAX_SCRIPT_CHARS = 400  # of a path: a script with a longer one is not noted, so that the file stays readable
MAX_PEAK = 1000.0
VERSION = 1

Key = tuple[str, str]  # (user, language)


class Damaged(ValueError):
    """A stored profile cannot be used. The text says why."""


class KeyUse:
    """The use of one key. peaks: slot -> peak of a usual day. todays_peak: that of the present slot, so far.

    scripts: paths, the one used last first.
    """

    def __init__(self) -> None:
        self.peaks: dict[int, float] = {}
        self.todays_peak = 0
        self.scripts: list[str] = []


class UseProfile:
    """The use of all keys. slot_number: of the slot that the peaks of today belong to, None if unknown.

    The number counts slots from the epoch, in local time: slot_number % SLOTS is the slot of the day.
    """

    def __init__(self) -> None:
        self.keys: dict[Key, KeyUse] = {}
        self.slot_number: int | None = None

    def note_request(self, key: Key, script: str, busy: int) -> None:
        """Note a request in the present slot. busy: engines of the key that run a request, with this one.

        If there are MAX_KEYS keys, a new one replaces the key with the smallest peaks.
        """
        if len(script) > MAX_SCRIPT_CHARS:
            return
        use = self.keys.get(key)
        if use is None:
            if len(self.keys) >= MAX_KEYS:
                del self.keys[min(self.keys, key=lambda old_key: sum(self.keys[old_key].peaks.values()))]
            use = self.keys[key] = KeyUse()
        use.todays_peak = max(use.todays_peak, busy)
        if not use.scripts or use.scripts[0] != script:
            other_scripts = [path for path in use.scripts if path != script]
            use.scripts = [script, *other_scripts][:MAX_SCRIPTS]

    def end_slot(self, slot: int, ran_to_end: bool = True) -> None:
        """Mix the peaks of today into those of the usual day for `slot`, which ends now; begin the next slot.

        A key that has no peak left is dropped. ran_to_end: whether X-Switch ran until the end of the slot; if not,
        a peak of today that is lower than the usual one changes nothing.
        """
        for key, use in list(self.keys.items()):
            usual = use.peaks.pop(slot, 0.0)
            today = use.todays_peak if ran_to_end else max(use.todays_peak, usual)
            # Without a usual peak, this is the first use in the slot: it counts in full.
            peak = usual + (today - usual) * TODAYS_WEIGHT if usual else float(today)
            if peak >= MIN_PEAK:
                use.peaks[slot] = min(peak, MAX_PEAK)
            use.todays_peak = 0
            if not use.peaks:
                del self.keys[key]

    def expected_engines(self, key: Key, slots: tuple[int, ...]) -> int:
        """Return how many engines of a key are usually busy in one of these slots."""
        use = self.keys.get(key)
        # int(x + 0.5) rounds to the nearest number
        return 0 if use is None else max(int(use.peaks.get(slot, 0.0) + 0.5) for slot in slots)

    def drop_script(self, key: Key, script: str) -> None:
        """Forget a script that must not run any more; with its last script, forget the key."""
        use = self.keys.get(key)
        if use is not None and script in use.scripts:
            use.scripts.remove(script)
            if not use.scripts:
                del self.keys[key]

    # Stored form

    def as_values(self) -> dict[str, Any]:
        """Return the profile as values of JSON, with the peaks of today and the number of their slot."""
        rows = [
            {
                "user": user,
                "language": language,
                "scripts": use.scripts,
                "peaks": {str(slot): round(peak, 3) for slot, peak in sorted(use.peaks.items())},
                "todays_peak": min(use.todays_peak, int(MAX_PEAK)),
            }
            for (user, language), use in sorted(self.keys.items())
        ]
        return {"version": VERSION, "slot_number": self.slot_number, "keys": rows}


def from_values(values: object) -> UseProfile:
    """Return the profile in the values of UseProfile.as_values(), read from its file. Raises Damaged.

    A file of an earlier release has no slot_number, and no peaks of today.
    """
    profile = UseProfile()
    if not isinstance(values, Mapping) or values.get("version") != VERSION:
        raise Damaged(f"it is no profile of version {VERSION}")
    rows = values.get("keys")
    if not isinstance(rows, list) or len(rows) > MAX_KEYS:
        raise Damaged(f"keys is no list of at most {MAX_KEYS}")
    slot_number = values.get("slot_number")
    if slot_number is not None and not is_whole_number(slot_number):
        raise Damaged("slot_number is no whole number from 0")
    profile.slot_number = slot_number
    for row in rows:
        key, use = use_of(row)
        profile.keys[key] = use
    return profile


def is_whole_number(value: object) -> TypeGuard[int]:
    """Return whether a stored value is a whole number from 0. True and False are no numbers."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def use_of(row: object) -> tuple[Key, KeyUse]:
    """Return one row of a stored profile. Raises Damaged."""
    if not isinstance(row, Mapping):
        raise Damaged("a row is no object")
    user, language, scripts, peaks = (row.get(name) for name in ("user", "language", "scripts", "peaks"))
    if not isinstance(user, str) or not isinstance(language, str):
        raise Damaged("a row has no user or no language")
    if not isinstance(scripts, list) or not 0 < len(scripts) <= MAX_SCRIPTS:
        raise Damaged(f"{user}, {language}: scripts is no list of 1 to {MAX_SCRIPTS}")
    if not all(isinstance(script, str) and is_path(script) for script in scripts):
        raise Damaged(
            f"{user}, {language}: a script is no absolute path of at most {MAX_SCRIPT_CHARS} characters"
        )
    if not isinstance(peaks, Mapping):
        raise Damaged(f"{user}, {language}: peaks is no object")
    use = KeyUse()
    use.scripts = list(scripts)
    use.peaks = dict(peaks_of(peaks, f"{user}, {language}"))
    todays_peak = row.get("todays_peak", 0)
    if not is_whole_number(todays_peak) or todays_peak > MAX_PEAK:
        raise Damaged(f"{user}, {language}: todays_peak is no whole number from 0 to {MAX_PEAK:g}")
    use.todays_peak = todays_peak
    return (user, language), use


def is_path(text: str) -> bool:
    """Return whether a text can be the path of a script: absolute, and of characters that a file name may have."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return text.startswith("/") and "\0" not in text and len(text) <= MAX_SCRIPT_CHARS


def peaks_of(peaks: Mapping[Any, object], row_name: str) -> Iterator[tuple[int, float]]:
    """Yield the slots and peaks of a row. row_name: for the errors. Raises Damaged."""
    for slot, peak in peaks.items():
        if not re.fullmatch(r"[0-9]{1,2}", slot) or int(slot) >= SLOTS:
            raise Damaged(f"{row_name}: there is no slot {slot}")
        if isinstance(peak, bool) or not isinstance(peak, int | float) or not 0 <= peak <= MAX_PEAK:
            raise Damaged(f"{row_name}: the peak of slot {slot} is no number from 0 to {MAX_PEAK:g}")
        yield int(slot), float(peak)
