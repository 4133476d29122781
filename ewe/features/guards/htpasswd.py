"""htpasswd: a file of names and password hashes, as Apache's program `htpasswd` writes it.

    ada:$2y$12$...           bcrypt           htpasswd -B
    bob:$6$...               SHA-512-crypt    htpasswd -5
    cid:$5$...               SHA-256-crypt    htpasswd -2
    dan:$apr1$...            MD5 of Apache    htpasswd       (its default; use -B)
    eve:{SHA}...             SHA-1, unsalted  htpasswd -s    (for old files only)

Plain passwords and DES (htpasswd -p, -d) are refused: anybody who reads the file would have all passwords, or has
them after minutes. The library libpass checks the hashes, and the library bcrypt those of bcrypt.

**The file changes** while the server runs. ewe looks at most once a second. A line that cannot be used is an error
when the server starts. Later it goes to the error log, and its user cannot log in; the other lines count. If the
file itself cannot be read, nobody can log in.

**Time tells nothing** about names: for an unknown name, ewe checks the password against the most expensive hash of
the file, and drops the outcome. A file with hashes of one kind therefore answers all names in the same time.

Possible failures: a hash asks for hours of work ($2y$31$). The file's reader refuses costs above MAX_BCRYPT_COST
and MAX_ROUNDS. A file that a user of the server writes has narrower bounds (Bounds): a long file, or an
expensive hash, takes time from all clients.
"""

from __future__ import annotations

import errno
import hmac
import os
import re
import stat
import time
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha1
from typing import NamedTuple

from ewe import logger
from ewe.features.static import file_version
from ewe.http.status import HTTPError
from ewe.streams.descriptors import EXHAUSTED

CHECK_EVERY_S = 1.0  # seconds for which the file is not looked at again
MAX_HTPASSWD_BYTES = 16 * 1024 * 1024  # bytes of the password file
MAX_LOGGED_LINES = 20  # lines of the error log for one change of the file
MAX_PASSWORD_BYTES = 255  # bytes, the limit of htpasswd; the time of SHA-crypt grows with the length
MAX_BCRYPT_COST = 15  # of bcrypt: about three seconds
MIN_ROUNDS, MAX_ROUNDS = 1000, 500_000  # of SHA-crypt; no program writes fewer
DEFAULT_ROUNDS = 5000  # of SHA-crypt, if the hash does not say how many
# About how many steps of bcrypt, and rounds of SHA-crypt, a processor makes in a millisecond
BCRYPT_STEPS_IN_MS, ROUNDS_IN_MS = 16, 500
INSTALL = "needs the libraries libpass and bcrypt: pip install 'ewe-server[auth]'"
BCRYPT = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
SHA_CRYPT = re.compile(r"\$([56])\$(?:rounds=([1-9][0-9]{0,8})\$)?[./A-Za-z0-9]{0,16}\$([./A-Za-z0-9]+)")
APR1 = re.compile(r"\$apr1\$[./A-Za-z0-9]{0,8}\$[./A-Za-z0-9]{22}")
SHA1 = re.compile(r"\{SHA\}[A-Za-z0-9+/]{27}=")
DES = re.compile(r"[./A-Za-z0-9]{13}")
DIGITS = {"5": 43, "6": 86}  # characters of a digest of SHA-crypt
BCRYPT_BYTES = 72  # bcrypt reads no more of a password


class PasswordEntry(NamedTuple):
    """A line. check_ms: about how many milliseconds a check takes. line: its number in the file."""

    hash: str
    check_ms: float
    line: int


class LoadedFile(NamedTuple):
    """One version of the file. version: its file_version().

    decoy: the most expensive hash, for the check of an unknown name; "" if there is no user.
    """

    version: tuple[int, ...]
    users: dict[bytes, PasswordEntry]
    decoy: str


class Bounds(NamedTuple):
    """The limits of a password file. max_check_ms: of each hash (check_ms_of())."""

    max_bytes: int = MAX_HTPASSWD_BYTES
    max_check_ms: float = 1e9


ANY = Bounds()


class BadLine(ValueError):
    """A line of the file cannot be used; the text says why."""


def check_ms_of(text: str) -> float:
    """Return about how many milliseconds a check of a hash takes. Raises BadLine for a hash that is refused."""
    if match := BCRYPT.fullmatch(text):
        cost = int(match[1])
        if not 4 <= cost <= MAX_BCRYPT_COST:
            raise BadLine(f"its cost is {cost}; ewe takes 4 to {MAX_BCRYPT_COST} (htpasswd -B -C 12)")
        return 2.0**cost / BCRYPT_STEPS_IN_MS
    if match := SHA_CRYPT.fullmatch(text):
        rounds = int(match[2] or DEFAULT_ROUNDS)
        if len(match[3]) != DIGITS[match[1]]:
            raise BadLine("its hash is not complete")
        if not MIN_ROUNDS <= rounds <= MAX_ROUNDS:
            raise BadLine(f"its hash has {rounds} rounds; ewe takes {MIN_ROUNDS} to {MAX_ROUNDS}")
        return rounds / ROUNDS_IN_MS
    if APR1.fullmatch(text):
        return 1.0
    if SHA1.fullmatch(text):
        return 0.001
    if DES.fullmatch(text):
        raise BadLine("its password is hashed with DES crypt, which ewe refuses: use htpasswd -B")
    raise BadLine("its password is plain text or of an unknown kind, which ewe refuses: use htpasswd -B")


def check(stored: str, password: bytes) -> bool:
    """Return whether a password matches a stored hash, which check_ms_of() has accepted. Takes up to seconds."""
    from passlib.hash import apr_md5_crypt, bcrypt, sha256_crypt, sha512_crypt

    if stored.startswith("{SHA}"):
        return hmac.compare_digest(b64encode(sha1(password).digest()), stored[5:].encode())
    if stored.startswith("$2"):
        return bool(bcrypt.verify(password[:BCRYPT_BYTES], stored))
    kind = {"$5": sha256_crypt, "$6": sha512_crypt, "$a": apr_md5_crypt}[stored[:2]]
    return bool(kind.verify(password, stored))


def load_libraries() -> None:
    """Import all that check() needs: later this process may not be allowed to read Python's directories.

    The package libpass continues the package passlib, and its module is still called passlib. passlib.hash imports
    the module of a kind of hash when an import statement names the kind. Raises ImportError.
    """
    from passlib.exc import MissingBackendError
    from passlib.hash import apr_md5_crypt, bcrypt, sha256_crypt, sha512_crypt  # noqa: F401

    try:
        bcrypt.set_backend("bcrypt")  # otherwise the first check would import the library bcrypt
    except MissingBackendError as reason:
        raise ImportError(str(reason)) from None


def read(
    data: bytes, bad: Callable[[int, str], None], max_check_ms: float = 1e9
) -> dict[bytes, PasswordEntry]:
    """Return the users of a file's bytes. bad: called with a bad line's number and the reason.

    max_check_ms: of each hash; a line with a more expensive one is bad.
    """
    users: dict[bytes, PasswordEntry] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.rstrip(b"\r \t")
        if not line or line.startswith(b"#"):
            continue
        name, colon, rest = line.partition(b":")
        try:
            if not colon or not name:
                raise BadLine("expected NAME:HASH")
            if name in users:
                raise BadLine(f"its name is in line {users[name].line} already")
            stored = rest.partition(b":")[0].decode("latin-1")
            check_ms = check_ms_of(stored)
            if check_ms > max_check_ms:
                raise BadLine(
                    f"its hash takes about {check_ms:.0f} ms to check; at most {max_check_ms:.0f} are allowed here"
                )
            users[name] = PasswordEntry(stored, check_ms, number)
        except BadLine as reason:
            bad(number, str(reason))
    return users


class Htpasswd:
    """The users of a file, read again when it changes."""

    def __init__(self, path: str, bounds: Bounds = ANY) -> None:
        """Read the file. Raises ValueError for a file or a line that cannot be used.

        Raises OSError if the system has no descriptor left, as hash_of() and reload_if_changed() do.
        """
        self.bounds = bounds
        try:
            load_libraries()
        except ImportError:
            raise ValueError(INSTALL) from None
        self.path = os.path.abspath(path)

        def refuse(number: int, reason: str) -> None:
            raise ValueError(f"{path} line {number}: {reason}")

        try:
            version, data = self.load()
        except OSError as reason:
            if reason.errno in EXHAUSTED:
                raise
            raise ValueError(f"cannot read {path}: {reason.strerror}") from None
        self.use(version, read(data, refuse, bounds.max_check_ms))
        self.checked_at = time.monotonic()
        self.fault = ""  # the reason why the last check could not read the file

    def load(self) -> tuple[tuple[int, ...], bytes]:
        """Return file_version() of the file, and its bytes. Raises OSError, also for a file above max_bytes."""
        # O_NONBLOCK: to open a FIFO would wait for a writer, and hold all clients of an event loop.
        with open(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            # The version is taken before the bytes are read: a change in between causes one more load(), and is
            # never missed.
            file_status = os.fstat(file.fileno())
            if not stat.S_ISREG(file_status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            # Not read(): on macOS a path of /dev/fd shares the position of the file that it names. One byte more
            # than the limit shows that the file is too long.
            data = os.pread(file.fileno(), self.bounds.max_bytes + 1, 0)
        if len(data) > self.bounds.max_bytes:
            raise OSError(errno.EFBIG, f"longer than {self.bounds.max_bytes} bytes")
        return file_version(file_status), data

    def use(self, version: tuple[int, ...], users: dict[bytes, PasswordEntry]) -> None:
        """Use the users of this version of the file from now on."""
        decoy = max(users.values(), key=lambda user: user.check_ms).hash if users else ""
        # One assignment: two threads may load the file at once. If the users of an older version got the version of
        # a newer one, no later check would notice the change.
        self.loaded = LoadedFile(version, users, decoy)

    def reload_if_changed(self) -> None:
        """Read the file again if it has changed; check that at most once in CHECK_EVERY_S.

        Raises HTTPError(500) if the last check could not read the file: no user can log in until the next check.
        """
        now = time.monotonic()
        if now - self.checked_at >= CHECK_EVERY_S:
            fault = ""
            try:
                if file_version(os.stat(self.path)) != self.loaded.version:
                    version, data = self.load()
                    self.bad_lines = 0
                    self.use(version, read(data, self.log_bad_line, self.bounds.max_check_ms))
            except OSError as reason:
                # The file is not at fault: the client gets a 503, and the next request checks again.
                if reason.errno in EXHAUSTED:
                    raise
                fault = f"auth: cannot read {self.path}: {reason.strerror}; no user can log in"
            self.fault, self.checked_at = fault, now
        if self.fault:
            raise HTTPError(500, self.fault)

    def log_bad_line(self, number: int, reason: str) -> None:
        """Write to the error log that a line cannot be used; of many lines only the first MAX_LOGGED_LINES."""
        self.bad_lines += 1
        if self.bad_lines > MAX_LOGGED_LINES:
            return
        logger.errors.error(f"auth: {self.path} line {number}: {reason}; this user cannot log in")

    def hash_of(self, name: bytes) -> tuple[str, bool]:
        """Return the hash to check a password against, and whether it is the user's. Raises HTTPError(500).

        For an unknown name it is another user's, since the time of the check must not tell which names exist; "" if
        there is no user at all.
        """
        self.reload_if_changed()
        loaded = self.loaded
        user = loaded.users.get(name)
        return (user.hash, True) if user is not None else (loaded.decoy, False)
