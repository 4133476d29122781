"""The structure that every page of ewe must have, for browsers, screen readers and validators."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "wbr"}
# A browser ends these by itself
OPTIONAL = {"html", "p", "li", "dt", "dd", "tr", "td", "th", "thead", "tbody", "option", "summary"}
# Characters that RFC 3986 lets stand in a path or a query, and the beginnings of a query and a fragment
URL = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?#]|%[0-9A-Fa-f]{2})*")


class Structure(HTMLParser):
    """Collects the faults of a page's structure."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.landmarks: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.language = ""
        if not page.startswith("<!DOCTYPE html>\n"):
            self.faults.append("no document type")
        self.feed(page)
        self.close()
        if not self.language:
            self.faults.append("<html> has no language")
        self.faults += [
            f"{self.count.get(tag, 0)} of <{tag}>" for tag in ("main", "title") if self.count.get(tag) != 1
        ]
        for what, found in (("landmark", self.landmarks), ("id", self.ids)):
            self.faults += [f"{what} twice: {each}" for each in {*found} if found.count(each) > 1]
        self.faults += [f"<{tag}> is not closed" for tag in self.open if tag not in OPTIONAL]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        values = {name: value or "" for name, value in attrs}
        if len(values) != len(attrs):
            self.faults.append(f"an attribute twice: {self.get_starttag_text()}")
        if tag == "html":
            self.language = values.get("lang", "")
        if tag in ("nav", "aside"):
            self.landmarks.append((tag, values.get("aria-label", "")))
        if tag == "main" and "main" in self.open:
            self.faults.append("<main> in <main>")
        if "id" in values:
            self.ids.append(values["id"])
        for name in ("href", "action", "src"):
            if URL.fullmatch(values.get(name, "")) is None:
                self.faults.append(f"{name} is no URL: {values[name]}")
        if tag == "img" and "alt" not in values:
            self.faults.append("an image without a text")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in OPTIONAL:
            self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")


def faults(page: str) -> list[str]:
    """Return the faults in the structure of a page of ewe."""
    return Structure(page).faults
