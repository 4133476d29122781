"""Header fields of responses: set, add, remove (setting `headers`).

    headers = { set = { X-Frame-Options = "DENY" }, add = { Vary = "Cookie" }, remove = ["X-Powered-By"] }

`remove` drops every field of a name. `set` replaces all fields of a name by its own. `add` keeps the fields of the
response, and adds one more. All three change every response of the location, error pages and redirects included
(nginx's `always`): an error page without a security policy could be attacked.

A value is a fixed text, checked when the settings are read: nothing that a client sends gets into it, and no line
end. The fields that frame a response, and Date and Server, are written by ewe alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ewe.config.messages import Reason
from ewe.config.setting import Key
from ewe.config.setting_types import Kind, list_of
from ewe.config.table_kinds import TableKind
from ewe.features.declaration import Feature, StepKey
from ewe.features.field_filter import FieldFilter
from ewe.http.fields import TOKEN

if TYPE_CHECKING:
    from ewe.features.field_filter import Fields
    from ewe.http.messages import Request, Response

FIELD_NAME = re.compile(rf"{TOKEN}{{1,256}}")
FIELD_VALUE = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
OURS = frozenset({
    "connection", "content-length", "date", "keep-alive", "proxy-connection", "server", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip


def _name(raw: object) -> str:
    """Return the name of a header field that a setting may change. Raises ValueError."""
    if not isinstance(raw, str) or FIELD_NAME.fullmatch(raw) is None:
        raise ValueError(raw)
    if raw.lower() in OURS:
        raise Reason(f"ewe itself writes {raw}, and no setting changes it")
    return raw


def _value(raw: object) -> str:
    """Return the value of a field, as Latin-1 characters of its bytes."""
    # A UnicodeEncodeError is a ValueError.
    if not isinstance(raw, str) or FIELD_VALUE.fullmatch(value := raw.encode().decode("latin-1")) is None:
        raise ValueError(raw)
    return value


NAME = Kind("NAME", "the name of a field, such as X-Frame-Options", _name)
VALUE = Kind("TEXT", "a text in one line, without spaces at its ends", _value)
VALUES = list_of("TEXT", f"{VALUE.expected}, or a list", _value, lone=True)
FIELDS = TableKind('{ NAME = "value" }', others=(NAME, VALUES))
REMOVED = list_of("NAMES", 'a list of field names such as ["X-Powered-By"]', _name, lone=True, least=1)
HEADERS = TableKind('{ set = { NAME = "value" }, add = { ... }, remove = ["NAME"] }', {
    "set": Key(FIELDS, "fields in place of those that have their names"),
    "add": Key(FIELDS, "fields besides those that have their names"),
    "remove": Key(REMOVED, "names of fields that no response has"),
})  # fmt: skip


class Headers(FieldFilter):
    """Changes the fields of every response."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        """table: the value of the setting, as HEADERS returns it. A field has a tuple of values, often only one."""
        # To set a field is to drop the response's fields of that name, and then to add the values of the setting.
        replaced: Mapping[str, tuple[str, ...]] = table.get("set", {})
        self.dropped = frozenset(name.lower() for name in (*table.get("remove", ()), *replaced))
        fields = (*replaced.items(), *table.get("add", {}).items())
        self.added = tuple((name, value) for name, values in fields for value in values)

    def changed_fields(self, request: Request, response: Response, now: int) -> Fields:
        """Return the fields of the response as the setting changes them."""
        kept = (field for field in response.fields if field[0].lower() not in self.dropped)
        return (*kept, *self.added)


FEATURE = Feature("headers", keys={"headers": StepKey(HEADERS, "fields of the response", Headers)})
