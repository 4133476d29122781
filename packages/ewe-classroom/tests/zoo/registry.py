"""The registry of the zoo: each mutant with the check that must catch it, its lab, and what the check says."""

ZOO = {}


def mutant(check, lab, says):
    """Register a class. says: a part of the text that the student must get ("|": one of several)."""

    def add(kind):
        ZOO[kind.__name__] = (kind, check, lab, says)
        return kind

    return add
