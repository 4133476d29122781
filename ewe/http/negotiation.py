"""Negotiation: which of several forms of a resource a client prefers. RFC 9110 section 12, RFC 4647. No I/O.

A client lists what it accepts, each item with a weight from 0 to 1 (a quality value, 1 if it is missing):

    Accept-Encoding: br, gzip;q=0.5, identity;q=0          Accept-Language: de-CH, de;q=0.8, en;q=0.5

The client's weights decide. If weights are equal, the server's order decides. A malformed item is ignored, because
a server must not fail because of a preference. The time of each function is proportional to the length of the
field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

WEIGHT = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)  # RFC 9110 section 12.4.2
# RFC 4647 section 2.1. No language tag has 16 parts, and the time of a lookup grows by the square of their number.
LANGUAGE_RANGE = re.compile(r"\*|[a-z]{1,8}(?:-[a-z0-9]{1,8}){0,15}")
MAX_LANGUAGE_RANGES = 32  # language ranges of a field that are used; no person speaks more
# The weight of "no coding" if the field does not mention it: acceptable, but worse than any coding (section
# 12.5.3).
NO_CODING_WEIGHT = 0.0001


def weights(value: str) -> dict[str, float]:
    """Return the weight of each item of a list such as Accept-Encoding, in lower case, in the order of the list.

    If an item occurs twice, the last one counts.
    """
    found: dict[str, float] = {}
    for part in value.lower().split(","):
        item, _, parameter = part.partition(";")
        weight = parameter.strip(" \t").replace(" ", "").replace("\t", "")
        if not weight:
            found[item.strip(" \t")] = 1.0
        elif match := WEIGHT.fullmatch(weight):
            found[item.strip(" \t")] = float(match[1])
    return found


def preferred_coding(accepts: str | None, codings: Iterable[str]) -> str:
    """Return the content coding to send, "" for none: RFC 9110 section 12.5.3.

    accepts: the value of Accept-Encoding. codings: the available codings. If weights are equal, the first coding
    wins, and any coding wins over no coding. The result may be "" although the client refuses that (identity;q=0):
    section 12.5.3 allows a server to send the body without a coding.
    """
    if accepts is None:
        return ""
    found = weights(accepts)
    if "x-gzip" in found:
        found.setdefault("gzip", found["x-gzip"])
    star = found.get("*", 0.0)
    best, chosen = found.get("identity", NO_CODING_WEIGHT), ""
    for coding in codings:
        weight = found.get(coding, star)
        # With equal weights, a coding wins over no coding, but not over an earlier coding.
        if weight > 0 and (weight > best or (not chosen and weight >= best)):
            best, chosen = weight, coding
    return chosen


def preferred_language(accepts: str | None, languages: Sequence[str]) -> str:
    """Return the language to send: RFC 4647 section 3.4 (lookup). If none matches, return the first language.

    accepts: the value of Accept-Language. languages: tags such as "de" or "pt-BR", at least one.

    Lookup shortens each range from its end until a language matches: de-CH-1996, de-CH, de. If none matches, a
    longer tag may match the range: "en" finds "en-GB" (basic filtering, section 3.3.1). If no range has found a
    language, another variant of the same language is better than another language: "pt-PT" finds "pt-BR", as under
    Apache. A language of weight 0 is chosen only if the client refuses every language.
    """
    if accepts is None:
        return languages[0]
    accepted, refused = language_ranges(accepts)
    tags: dict[str, str] = {}  # tag in lower case -> tag as in `languages`; of two equal ones, the first
    for tag in languages:
        if not is_refused(tag.lower(), refused, accepted):
            tags.setdefault(tag.lower(), tag)
    for item in accepted:
        if item == "*":
            # The star matches only languages that the client does not name (section 3.4.1).
            match = next((tag for tag in tags if tag not in accepted), "")
        else:
            match = looked_up(item, tags) or longer_tag(item, tags)
        if match:
            return tags[match]
    for item in accepted:  # no range has matched: another variant of the same language
        language = item.partition("-")[0]
        # The subtags x and i alone name no language.
        if len(language) > 1 and (match := longer_tag(language, tags)):
            return tags[match]
    return next(iter(tags.values()), languages[0])


def language_ranges(accepts: str) -> tuple[list[str], list[str]]:
    """Return the ranges of Accept-Language that a client accepts, the best first, and those that it refuses."""
    ranges = {item: weight for item, weight in weights(accepts).items() if LANGUAGE_RANGE.fullmatch(item)}
    # The sort is stable: if weights are equal, the client's order counts.
    accepted = sorted((item for item in ranges if ranges[item] > 0), key=lambda item: -ranges[item])
    refused = [item for item, weight in ranges.items() if not weight]
    return accepted[:MAX_LANGUAGE_RANGES], refused[:MAX_LANGUAGE_RANGES]


def longer_tag(item: str, tags: Iterable[str]) -> str:
    """Return the first tag that begins with a language range; "" if none: RFC 4647 section 3.3.1."""
    return next((tag for tag in tags if tag.startswith(item + "-")), "")


def is_refused(tag: str, refused: list[str], wanted: list[str]) -> bool:
    """Return whether a client gives a language the weight 0. The longest range that matches the tag decides."""
    matching = [item for item in (*refused, *wanted) if tag == item or tag.startswith(item + "-")]
    if matching:
        return max(matching, key=len) in refused
    # The star refuses all languages that no range names. A longer range, such as en-GB for en, names one.
    return "*" in refused and not any(item.startswith(tag + "-") for item in wanted)


def looked_up(item: str, tags: dict[str, str]) -> str:
    """Return the tag that matches a language range or its shortened forms; "" if none: RFC 4647 section 3.4."""
    parts = item.split("-")
    while parts:
        if (tag := "-".join(parts)) in tags:
            return tag
        parts.pop()
        if parts and len(parts[-1]) == 1:  # a singleton, such as x, has no meaning at the end of a tag
            parts.pop()
    return ""


def with_vary(fields: tuple[tuple[str, str], ...], name: str) -> tuple[tuple[str, str], ...]:
    """Add the name of a request field to Vary; return the response's fields: RFC 9110 section 12.5.5.

    Several Vary fields are merged into one. `*` is not changed, since it covers all fields.
    """
    values = [value for field_name, value in fields if field_name.lower() == "vary"]
    present = [item.strip(" \t") for value in values for item in value.split(",")]
    if "*" in present or name.lower() in (item.lower() for item in present):
        return fields
    merged = ", ".join([*(item for item in present if item), name])
    return (*(field for field in fields if field[0].lower() != "vary"), ("Vary", merged))
