"""The registry of the zoo: each mutant with the check that must catch it, its lab, and what the check says."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A class with one fault. says: a part of the text that the student must get ("|": one of several)."""

    kind: type
    check: str
    lab: str
    says: str


ZOO = {}


def mutant(check, lab, says):
    """Return a decorator that registers a class in ZOO, with the fields of Mutant."""

    def add(kind):
        ZOO[kind.__name__] = Mutant(kind, check, lab, says)
        return kind

    return add
