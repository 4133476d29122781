"""The parser of ewe's command lines: the same words under each version of Python.

argparse changes from version to version. Since 3.13 it shows a value once for an option with two names. Since 3.14
it colors help on a terminal, and wherever FORCE_COLOR is set. The message about a word that is none of the choices
has been worded in four ways. Here ewe decides instead.
"""

from __future__ import annotations

import argparse
import sys

from ewe.config.messages import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class HelpFormatter(argparse.HelpFormatter):
    """Writes each option with all its names, then its value once."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        words = [", ".join(action.option_strings)]
        if action.nargs != 0:
            words.append(self._format_args(action, self._get_default_metavar_for_optional(action)))
        return " ".join(words).rstrip()


class CommandParser(argparse.ArgumentParser):
    """Reports an error as one line, with the nearest word if a choice is misspelt, and writes no colors."""

    def __init__(self, **options: Any) -> None:
        if sys.version_info >= (3, 14):
            options["color"] = False
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            told = f"there is no {value!r}{nearest(str(value), known) or '; there are ' + ', '.join(known)}"
            raise argparse.ArgumentError(action if action.option_strings else None, told)
