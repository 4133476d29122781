"""Patterns that could stop the server: regular expressions that take exponential time for some texts.

Python's `re` tries every way in which a pattern can match, one after the other, and a location's pattern sees paths
that strangers choose. For ^/(a+)+$ and 30 letters "a" with an "!" behind them there are 2^29 ways to divide the
letters among the repetitions, and `re` tries them all: for seconds, then for years. It holds the interpreter's lock
meanwhile, so the whole process stands still. `re` has no time limit. is_explosive() therefore refuses such a
pattern when it is read.

The test is exact for the core of regular expressions. Each place of the pattern that matches a character is a
position. follow says which positions may come after which, and in how many ways (Glushkov's automaton):

    ^/(a+)+$      "/" ─▶ a ─▶ a   twice: once within a+, once as the next turn of the group
    ^/(\\w+/)+$    "/" ─▶ \\w ─▶ \\w   once; a new turn of the group must pass "/", which is no \\w

A pattern is explosive if, for one text, two different walks lead from a position back to itself (exponential degree
of ambiguity: Weber and Seidl 1991). walks_twice() searches for both walks at once, as pairs of positions.

The other patterns take polynomial time, but of which degree? Loops that one text can pass in several ways multiply:
^/.*/.*/.*x$ has three, and takes time by the third power of the length. For 1,000 characters that is half a second;
with a fourth loop it would be minutes. longest_chain() counts them. A second loop counts if some text leads from
the first loop back to it, from the second back to it, and also from the first to the second: then each of many
places of a longer text may be the one where the walk changes over. The loops of ^/([^/]*)/([^/]*)$ have no such
text, because [^/] does not match the slash between them. A pattern that may begin anywhere has one loop more, in
front. ewe.sites.location bounds the length of a path that is matched.

Without a loop, too, there may be too many ways: a? thirty times, and then thirty times a. ways() counts them for
texts of one repeated character. longest_text() is shorter for a pattern with many ways.

A back reference counts as another copy of its group. A pattern of more than MAX_POSITIONS, or one for which the
search takes more than MAX_PAIRS, counts as harmless.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

# Characters for which the test is made: letters of Latin, and some of other scripts. A pattern adds those that it
# names: see characters_named()
ALPHABET = frozenset({*range(0x180), 0x416, 0x436, 0x660, 0x2014, 0x3000, 0x4E00, 0x1F600})
MAX_POSITIONS = 1000  # of a pattern; a larger one is not examined
MAX_PAIRS = 100_000  # pairs of positions, and triples of them, that are examined for one pattern
MAX_COPIES = 4  # times that a repetition is written out; one with a higher bound counts as one without
MAX_LOOPS = 3  # loops that one text may pass in several ways
LAST_LATIN = 0x17F  # the end of Latin Extended-A, with which ALPHABET begins
# Groups that set flags for a part of a pattern, and those for all of it
LOCAL_ASCII, LOCAL_CASE = (
    re.compile(r"\(\?[a-zA-Z-]*[au][a-zA-Z-]*:"),
    re.compile(r"\(\?[a-zA-Z]*-[a-zA-Z]*i"),
)
MULTILINE_FLAG = re.compile(r"\(\?[a-zA-Z]*m")
COUNTED_LENGTH = 64  # characters of the texts for which the ways are counted
MAX_WAYS = 10_000_000  # ways that re may try: half a second
# Characters of a text with which a pattern is matched. Three loops take time by the third power of the length: for
# ^/(.*?)/(.*?)/(.*?)x$ and 1,000 characters it is 5 s, for 400 it is 0.3 s
MAX_MATCHED, MAX_MATCHED_CUBIC, LEAST_MATCHED = 1024, 400, 200
MAX_STEPS = 1_000_000  # additions while the ways are counted
# One item of a parsed pattern, as Python's module re._parser returns it: (operation, argument), such as
# (LITERAL, 97) or (MAX_REPEAT, (0, MAXREPEAT, items))
Item = tuple[Any, Any]
CATEGORIES: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda text: text.isalnum() or text == "_",
}


class TooLarge(Exception):
    """The pattern has too many positions."""


class PatternPart(NamedTuple):
    """A part of a pattern. Each value says in how many ways: 0, 1, or 2 for more.

    first, last: it may begin and end at a position. empty: it may match nothing.
    """

    first: dict[int, int]
    last: dict[int, int]
    empty: int


NOTHING = PatternPart({}, {}, 1)


def added(one: dict[int, int], two: dict[int, int], times: int = 1) -> dict[int, int]:
    """Return position -> ways for two such dictionaries together: the ways of `two` count `times` times.

    A number above 2 stays 2: "more than one" is all that matters.
    """
    found = dict(one)
    for position, ways in two.items():
        if times:
            found[position] = min(found.get(position, 0) + ways * times, 2)
    return found


def is_explosive(pattern: str) -> bool:
    """Return whether a pattern takes exponential time for some texts, or more than cubic time. Raises re.error."""
    found = examine(pattern)
    return found.power > MAX_LOOPS or found.longest < LEAST_MATCHED


def longest_text(pattern: str) -> int:
    """Return with how many characters of a text a pattern may be matched: half a second at most passes."""
    return examine(pattern).longest


class PatternCost(NamedTuple):
    """The result for a pattern. power: of a text's length, by which the time grows; infinity: exponential time.

    longest: see longest_text().
    """

    power: float
    longest: int


@functools.lru_cache(maxsize=1024)
def examine(pattern: str) -> PatternCost:
    """Examine a pattern; one that is too large to examine counts as harmless. Raises re.error."""
    parsed = _parser.parse(pattern)
    named = characters_named(parsed)
    flags = parsed.state.flags
    automaton = Automaton(
        ALPHABET.union(*({each - 1, each, each + 1} for each in named)) - {-1},
        ascii_only=bool(flags & re.ASCII),
        partly_ascii=bool(LOCAL_ASCII.search(pattern)),
        ignores_case=bool(flags & re.IGNORECASE) and not LOCAL_CASE.search(pattern),
    )
    try:
        whole = automaton.concatenation(parsed)
        if automaton.explodes or automaton.walks_twice():
            return PatternCost(power=math.inf, longest=0)
        if not begins_at_once(parsed) or MULTILINE_FLAG.search(pattern):  # re.search() tries every place
            anywhere = automaton.add_position(automaton.alphabet)
            automaton.add_follow(anywhere.last, anywhere.first)
            automaton.add_follow(anywhere.last, whole.first)
        ways = automaton.ways()
        if ways > MAX_WAYS:
            return PatternCost(power=math.inf, longest=0)
        power = automaton.longest_chain() + automaton.inner_loops
    except TooLarge:
        return PatternCost(power=0, longest=MAX_MATCHED)
    # n characters have about ways * (n / COUNTED_LENGTH) ** power ways: find the n for MAX_WAYS.
    longest = int(COUNTED_LENGTH * (MAX_WAYS / ways) ** (1 / max(power, 1)))
    return PatternCost(power, min(longest, MAX_MATCHED if power < MAX_LOOPS else MAX_MATCHED_CUBIC))


def characters_named(items: Any) -> set[int]:
    """Return the characters above LAST_LATIN that a pattern names. items: of re._parser, or a part of them.

    A number counts as a character, even if it is a count of repetitions: a few characters more do no harm.
    """
    found: set[int] = set()
    if isinstance(items, int):
        # The names of operations, such as LITERAL, are of a subclass of int.
        return {items} if type(items) is int and items > LAST_LATIN else found
    if isinstance(items, str | None):
        return found
    for each in items:
        found |= characters_named(each)
    return found


def begins_at_once(parsed: Any) -> bool:
    r"""Return whether a pattern matches at the beginning of a text only: its first item is ^ or \A."""
    first = next(iter(parsed), None)
    return first is not None and str(first[0]) == "AT" and "BEGINNING" in str(first[1])


class Automaton:
    """The positions of a pattern: the characters that each matches, and which may follow it in how many ways."""

    def __init__(
        self,
        alphabet: frozenset[int] = ALPHABET,
        *,
        ascii_only: bool = False,
        partly_ascii: bool = False,
        ignores_case: bool = False,
    ) -> None:
        """alphabet: the characters to look at. ascii_only: the pattern has the flag `a`. partly_ascii: a part of
        the pattern has it. ignores_case: it has the flag `i`.
        """
        self.alphabet = alphabet
        self.ascii_only = ascii_only
        self.partly_ascii = partly_ascii
        self.ignores_case = ignores_case
        self.groups: dict[int, Any] = {}  # the items of each group, for back references
        self.characters: list[frozenset[int]] = []
        self.follow: list[dict[int, int]] = []
        self.explodes = False  # a part that is examined alone takes exponential time
        # The number of loops inside an assertion or an atomic group. Such a part is matched once for each place of
        # the loops around it, so these loops multiply with those.
        self.inner_loops = 0

    # From the parsed pattern to positions

    def concatenation(self, items: Iterable[Item]) -> PatternPart:
        """Add the positions of some items; return the part that matches the items one after the other."""
        whole = NOTHING
        for operation, argument in items:
            whole = self.joined(whole, self.part(str(operation), argument))
        return whole

    def part(self, operation: str, argument: Any) -> PatternPart:
        """Add the positions of one item, given as its operation and argument; return the part that it matches.

        An assertion counts as empty, a back reference as its group.
        """
        if operation == "SUBPATTERN":
            group_number, _, _, items = argument  # the flags do not matter here
            if group_number is not None:
                self.groups[group_number] = items
            return self.concatenation(items)
        if operation.startswith("GROUPREF") and operation != "GROUPREF_EXISTS":
            return self.concatenation(self.groups[argument])
        if operation == "BRANCH":
            _, branches = argument
            return self.alternation([self.concatenation(branch) for branch in branches])
        if operation == "GROUPREF_EXISTS":
            _, *branches = argument  # without the group's number; None for a missing branch
            return self.alternation(
                [self.concatenation(branch) for branch in branches if branch is not None] + [NOTHING]
            )
        if operation in ("MAX_REPEAT", "MIN_REPEAT"):
            return self.repetition(*argument)
        if operation in ("ATOMIC_GROUP", "POSSESSIVE_REPEAT"):  # re does not go back into them
            inner = self.automaton_for_part()
            least, _, items = argument if operation == "POSSESSIVE_REPEAT" else (1, 1, argument)
            part = inner.concatenation(items)
            self.include(inner)
            empty = part.empty > 0 or least == 0
            return self.add_position(frozenset().union(*inner.characters))._replace(empty=int(empty))
        if operation in ("ASSERT", "ASSERT_NOT"):
            inner = self.automaton_for_part()
            _, items = argument  # without the direction
            inner.concatenation(items)
            self.include(inner)
            return NOTHING
        if operation in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self.add_position(self.characters_of(operation, argument))
        return NOTHING

    def automaton_for_part(self) -> Automaton:
        """Return an empty automaton for a part that is examined alone. It knows the groups of the whole pattern."""
        made = Automaton(
            self.alphabet,
            ascii_only=self.ascii_only,
            partly_ascii=self.partly_ascii,
            ignores_case=self.ignores_case,
        )
        made.groups = self.groups
        return made

    def include(self, inner: Automaton) -> None:
        """Take over what is true of a part into which re does not go back, once the part has matched."""
        self.explodes = self.explodes or inner.explodes or inner.walks_twice() or inner.ways() > MAX_WAYS
        if not self.explodes:
            self.inner_loops = max(self.inner_loops, inner.longest_chain() + inner.inner_loops)

    def add_position(self, characters: frozenset[int]) -> PatternPart:
        """Add a position that matches one of these characters; return the pattern that consists of it alone.

        Raises TooLarge above MAX_POSITIONS.
        """
        if len(self.characters) >= MAX_POSITIONS:
            raise TooLarge
        self.characters.append(characters)
        self.follow.append({})
        number = len(self.characters) - 1
        return PatternPart(first={number: 1}, last={number: 1}, empty=0)

    def joined(self, one: PatternPart, two: PatternPart) -> PatternPart:
        """Let `two` follow `one`; return the part that matches both, in this order."""
        self.add_follow(one.last, two.first)
        return PatternPart(
            added(one.first, two.first, one.empty),
            added(two.last, one.last, two.empty),
            min(one.empty * two.empty, 2),
        )

    def add_follow(self, last: dict[int, int], first: dict[int, int]) -> None:
        """Let each position of `first` follow each position of `last`, in one more way."""
        for position, ways in last.items():
            self.follow[position] = added(self.follow[position], first, ways)

    def alternation(self, parts: list[PatternPart]) -> PatternPart:
        """Return the part that matches as one of these parts does."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for part in parts:
            first, last = added(first, part.first), added(last, part.last)
        return PatternPart(first, last, min(sum(part.empty for part in parts), 2))

    def repetition(self, least: int, most: int, items: Iterable[Item]) -> PatternPart:
        """Add the positions of some items, repeated from `least` to `most` times; return the part that they match.

        Up to MAX_COPIES repetitions are written out: a{2,3} becomes aa or aaa. Above, the repetition is a loop.
        """
        whole = NOTHING
        if int(most) > MAX_COPIES:
            alone = self.automaton_for_part()
            turn = alone.concatenation(items)
            if not turn.first:  # (?:(?=a){0,9}){30} has 10^30 ways to match nothing
                self.explodes = True
            if least == most:  # (a|aa){30} has 2^30 ways, and no loop
                alone.add_follow(turn.last, turn.first)
                self.explodes = self.explodes or alone.explodes or alone.walks_twice()
        for _ in range(min(int(least), MAX_COPIES)):
            whole = self.joined(whole, self.concatenation(items))
        if least == most and not whole.empty:
            return whole
        if int(most) > MAX_COPIES:
            turn = self.concatenation(items)
            self.add_follow(turn.last, turn.first)
            if turn.empty and least > MAX_COPIES:  # each of these turns may match nothing: (a?){30}
                self.add_follow(turn.last, turn.first)
            return self.joined(whole, turn._replace(empty=1))
        for _ in range(int(most) - int(least)):
            turn = self.concatenation(items)
            whole = self.joined(whole, turn._replace(empty=min(turn.empty + 1, 2)))
        return whole

    def characters_of(self, operation: str, argument: Any) -> frozenset[int]:
        """Return the characters that an item matches. operation, argument: of the item, in the words of re._parser.

        Letters are taken in both cases: a pattern may ignore case.
        """
        if operation == "ANY":
            return self.alphabet
        if operation == "LITERAL":
            return both_cases([argument])
        if operation == "NOT_LITERAL":
            return self.alphabet - {argument}
        found: frozenset[int] = frozenset()
        of_categories: frozenset[int] = frozenset()
        negated = False
        for kind, value in argument:
            name = str(kind)
            if name == "NEGATE":
                negated = True
            elif name == "LITERAL":
                found |= {value}
            elif name == "RANGE":
                found |= {each for each in self.alphabet if value[0] <= each <= value[1]}
            else:
                of_categories |= self.characters_of_category(str(value), but_surely=negated)
        # A negated set matches the other case of its letters, unless the pattern ignores case
        if not negated or self.ignores_case:
            found = both_cases(found)
        found |= of_categories
        return self.alphabet - found if negated else found

    def characters_of_category(self, name: str, *, but_surely: bool) -> frozenset[int]:
        r"""Return the characters of a category: CATEGORY_NOT_WORD is \W.

        With the flag `a`, only characters of ASCII belong to \w, \d and \s. If a part of the pattern has the flag,
        other letters count as \w and as \W, unless but_surely asks for those that are in the category in any case.
        """
        word = name.rpartition("_")[2]
        if word not in CATEGORIES:
            return self.alphabet
        test = CATEGORIES[word]
        sure = frozenset(each for each in self.alphabet if test(chr(each)))
        beyond = frozenset(each for each in sure if each > 127)
        if self.ascii_only and not self.partly_ascii:
            sure -= beyond
        unsure = beyond if self.partly_ascii else frozenset()
        found = self.alphabet - sure if "NOT" in name else sure
        return found - unsure if but_surely else found | unsure

    # From positions to the answer

    def ways(self) -> int:
        """Return how many walks there are for a text of COUNTED_LENGTH equal characters, from the worst position.

        As soon as there are more than MAX_WAYS, return so many as have been found.
        """
        most, steps_left = 1, MAX_STEPS
        kinds = {
            frozenset(position for position, own in enumerate(self.characters) if each in own)
            for each in self.alphabet
        }
        for kind in kinds:
            edges = [
                (one, two, ways) for one in kind for two, ways in self.follow[one].items() if two in kind
            ]
            # Position -> walks that begin there, of as many steps as were made
            counts = dict.fromkeys(kind, 1)
            sums = dict(counts)
            for _ in range(COUNTED_LENGTH):
                before, counts = counts, dict.fromkeys(kind, 0)
                for one, two, ways in edges:
                    counts[one] += before[two] * ways
                for one, count in counts.items():
                    sums[one] += count
                steps_left -= len(edges)
                most = max(most, *sums.values()) if sums else most
                if steps_left < 0 or most > MAX_WAYS:
                    return most
        return most

    def walks_twice(self) -> bool:
        """Return whether two different walks over one text lead from some position back to it.

        A step of both walks leads to a state: their positions, and whether the walks differ so far.
        """
        reach = [self.reached_from(position) for position in range(len(self.follow))]
        pairs_left = MAX_PAIRS
        for start, reached in enumerate(reach):
            if start not in reached:
                continue
            circle = {position for position in reached if start in reach[position]}
            seen = {(start, start, False)}
            waiting = [(start, start, False)]
            while waiting:
                one, two, differ = waiting.pop()
                for next_one, ways in self.follow[one].items():
                    for next_two in self.follow[two]:
                        if next_one not in circle or next_two not in circle:
                            continue
                        if self.characters[next_one].isdisjoint(self.characters[next_two]):
                            continue
                        apart = differ or next_one != next_two or (one == two and ways > 1)
                        state = (next_one, next_two, apart)
                        if state == (start, start, True):
                            return True
                        if state not in seen:
                            seen.add(state)
                            waiting.append(state)
                            pairs_left -= 1
                if pairs_left < 0:
                    raise TooLarge
        return False

    def longest_chain(self) -> int:
        """Return how many loops one text can pass in several ways: time grows by this power of its length.

        walks_twice() must have said no.
        """
        reach = [self.reached_from(position) for position in range(len(self.follow))]
        loops = {
            frozenset(each for each in reached if start in reach[each])
            for start, reached in enumerate(reach)
            if start in reached
        }
        masks = [sum(1 << each for each in characters) for characters in self.characters]
        # How many triples of positions may_change_over() may still examine, for all loops together
        triples_left = [MAX_PAIRS]
        longest: dict[frozenset[int], int] = {}
        # A loop is reached from more positions than the loops before it
        for loop in sorted(loops, key=lambda each: len(reach[min(each)])):
            later = [other for other in longest if min(other) in reach[min(loop)]]
            later.sort(key=lambda each: -longest[each])
            longest[loop] = 1
            for other in later:
                if longest[other] < longest[loop]:
                    break
                if self.may_change_over(loop, other, reach, masks, triples_left):
                    longest[loop] = longest[other] + 1
        return max(longest.values(), default=0)

    def may_change_over(
        self,
        loop: frozenset[int],
        other: frozenset[int],
        reach: list[set[int]],
        masks: list[int],
        triples_left: list[int],
    ) -> bool:
        """Return whether one text leads from a position p back to p, from p to q, and from q back to q.

        This is a search over triples: three walks read the same text from (p, p, q), and must reach (p, q, q).
        loop, other: the loops that contain p and q. reach: for each position, those that a walk from it reaches.
        masks: the characters of each position, one bit each. triples_left: how many triples of positions may still
        be examined; a list of one number, which this method decreases. Raises TooLarge when it is below 0.
        """
        aim = min(other)
        between = {position for position in reach[min(loop)] if position in other or aim in reach[position]}
        for p in loop:
            for q in other:
                seen = {(p, p, q)}
                waiting = [(p, p, q)]
                while waiting:
                    one, two, three = waiting.pop()
                    for next_one in self.follow[one].keys() & loop:
                        for next_three in self.follow[three].keys() & other:
                            common = masks[next_one] & masks[next_three]
                            if not common:
                                continue
                            for next_two in self.follow[two].keys() & between:
                                triple = (next_one, next_two, next_three)
                                if not common & masks[next_two] or triple in seen:
                                    continue
                                if triple == (p, q, q):
                                    return True
                                seen.add(triple)
                                waiting.append(triple)
                                triples_left[0] -= 1
                    if triples_left[0] < 0:
                        raise TooLarge
        return False

    def reached_from(self, position: int) -> set[int]:
        """Return the positions to which a walk from a position leads."""
        reached: set[int] = set()
        waiting = [position]
        while waiting:
            new = self.follow[waiting.pop()].keys() - reached
            reached |= new
            waiting += new
        return reached


def both_cases(characters: Iterable[int]) -> frozenset[int]:
    """Return characters (code points) with their other case: a pattern may ignore case."""
    return frozenset(
        ord(other)
        for each in characters
        for other in (chr(each), chr(each).lower(), chr(each).upper())
        if len(other) == 1  # ß has no upper case of one character
    )
