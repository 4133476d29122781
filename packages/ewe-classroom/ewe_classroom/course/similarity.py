"""Which submissions of a class are alike? copydetect compares their sources; this module asks it and sorts.

copydetect replaces names by their kind, cuts the text into overlapping parts of WINDOW_CHARS characters, and
compares fingerprints of these parts (winnowing: Schleimer, Wilkerson and Aiken, 2003). Names, comments and the
order of functions therefore make no difference. The parts that the starter has are left out.

A high number is a reason to read two files side by side, and never a proof: a short lab has few ways to be right.
The page of the class therefore shows the pairs to the lecturer alone.

copydetect is the extra `similarity` of ewe-classroom.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from ewe.config.messages import ConfigError

WINDOW_CHARS = 20  # the shortest part that counts
MIN_SHARE = 0.5  # part of the shorter file: pairs below are not listed
MAX_PAIRS = 50
MAX_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True)
class SimilarPair:
    """Two submissions. share: the part of the shorter source that the other has, too; 0 to 1."""

    first: str
    second: str
    share: float


def needs_copydetect() -> None:
    """Raise ConfigError if copydetect is missing."""
    try:
        import copydetect  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--similar needs copydetect: python3 -m pip install 'ewe-classroom[similarity]'"
        ) from None


def with_equal_names(text: str, suffix: str) -> str:
    """Return a source in Go with "V" in place of each name; return a source in any other language unchanged.

    copydetect itself replaces the names in Python and C. It does not know those in Go: Pygments, which splits a
    source into tokens, gives them another kind (Name.Other). suffix: of the file; it stands for the language.
    """
    if suffix != ".go":
        return text
    from pygments.lexers import GoLexer
    from pygments.token import Name

    return "".join("V" if kind is Name.Other else word for kind, word in GoLexer().get_tokens(text))


def similar(sources: dict[str, Path], starter: str, suffix: str) -> list[SimilarPair]:
    """Compare the sources of students; return the pairs that share at least MIN_SHARE, the most similar first.

    sources: student -> file. starter: the text that each student got. suffix: ".py", which names the language.
    Raises ConfigError if copydetect is missing.
    """
    needs_copydetect()
    import io

    from copydetect import CodeFingerprint, compare_files

    # win_size=1 keeps the hash of each part. A larger window would keep only some of them, to save time.
    starter_text = io.StringIO(with_equal_names(starter, suffix))
    in_starter = list(CodeFingerprint(f"starter{suffix}", WINDOW_CHARS, win_size=1, fp=starter_text).hashes)
    fingerprints = {}
    for name, path in sources.items():
        text = with_equal_names(path.read_bytes()[:MAX_SOURCE_BYTES].decode(errors="replace"), suffix)
        # copydetect takes the language from the name of a file; no file of this name exists.
        fingerprints[name] = CodeFingerprint(
            f"{name}{suffix}", WINDOW_CHARS, win_size=1, boilerplate=in_starter, fp=io.StringIO(text)
        )
    pairs = []
    for first, second in combinations(sorted(fingerprints), 2):
        _, shares, _ = compare_files(fingerprints[first], fingerprints[second])
        if (share := max(shares)) >= MIN_SHARE:  # the larger share is that of the shorter source
            pairs.append(SimilarPair(first, second, round(float(share), 2)))
    return sorted(pairs, key=lambda pair: (-pair.share, pair.first, pair.second))[:MAX_PAIRS]
