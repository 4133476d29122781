"""A cgroup for each user with limits: memory, processes and CPU time of all engines of the user (cgroups v2).

A limit of setrlimit(2) holds for one process, or for all processes of an account on the machine. A cgroup is a
directory whose files limit exactly the processes in it, and their children. suexecme makes one for each user whose
table has a limit that a cgroup can keep:

    /sys/fs/cgroup/xswitch            `base`: of the administrator, or delegated by systemd; no process is in it
        cgroup.subtree_control        +memory +pids +cpu: which limits its children may have
        user-1001/                    of alice
            memory.max                bytes; the kernel kills a process of hers that needs more
            pids.max                  processes and threads
            cpu.max                   microseconds in each 100,000
            cgroup.procs              a process that writes 0 here enters, and its children are inside from birth

A new process enters while it is still root, before it becomes the user: no instruction of a script runs outside.

The base itself must have no processes: the kernel refuses limits for the children of such a cgroup
(cgroups(7), "no internal processes"). systemd therefore puts X-Switch into a child of the delegated cgroup
(`Delegate=yes` with `DelegateSubgroup=`). find_base() looks for that, or takes the directory of the setting
`cgroup`.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ewe.config.cgroup_paths import cgroup_of, mount_of
from ewe.xswitch.user_limits import UserLimits

# The controller that keeps each limit of a table
CONTROLLERS = {"memory": "memory", "processes": "pids", "cpu_share": "cpu"}
PERIOD_US = 100_000  # of cpu.max
DELEGATION_ATTRIBUTES = "trusted.delegate", "user.delegate"  # with which systemd marks a delegated cgroup
ADVICE = (
    "name a directory of cgroups v2 (cgroup), or let systemd delegate one (Delegate=yes, DelegateSubgroup=)"
)


class NoCgroup(Exception):
    """There is no cgroup that X-Switch may divide. The text is the reason, for the log."""


class UserCgroups:
    """The cgroups of the users, below one directory.

    base: the directory, "" if the system has none. reason: why there is none. enforced: the limits (fields of
    UserLimits) that the cgroups enforce.
    """

    def __init__(self, base: str = "", reason: str = "", enforced: frozenset[str] = frozenset()) -> None:
        self.base, self.reason, self.enforced = base, reason, enforced
        self.uids: set[int] = set()  # uids of users whose cgroup exists
        self.remove_all()  # of an earlier suexecme

    @classmethod
    def from_setting(cls, setting: str) -> UserCgroups:
        """Return the cgroups that the setting `cgroup` leads to; or none, with the reason."""
        try:
            base = find_base(setting)
            enforced = enable_controllers(base)
            return cls(base, "", enforced)
        except NoCgroup as reason:
            return cls(reason=str(reason))
        except OSError as reason:
            return cls(reason=f"{reason.filename or setting}: {reason.strerror}")

    def describe(self) -> str:
        """Return one line that says how the limits of users are enforced, for the log and the status."""
        if not self.base:
            return f"limits of processes (setrlimit); no cgroups: {self.reason}"
        enforced = ", ".join(field.replace("_", "-") for field in CONTROLLERS if field in self.enforced)
        not_enforced = "".join(
            f"; not {field.replace('_', '-')}: there is no controller {controller}"
            for field, controller in CONTROLLERS.items()
            if field not in self.enforced
        )
        return f"cgroups below {self.base} ({enforced}){not_enforced}"

    def path(self, uid: int) -> str:
        """Return the directory of a user's cgroup."""
        return os.path.join(self.base, f"user-{uid}")

    def prepare(self, uid: int, limits: UserLimits) -> str:
        """Return the file through which an engine of a user enters the user's cgroup, "" if it needs none.

        Raises OSError.
        """
        if not any(getattr(limits, field) for field in self.enforced):
            return ""
        with suppress(FileExistsError):
            os.mkdir(self.path(uid), 0o755)
        self.uids.add(uid)
        self.write_limits(uid, limits)
        return os.path.join(self.path(uid), "cgroup.procs")

    def write_limits(self, uid: int, limits: UserLimits) -> None:
        """Set those limits of a user's cgroup that cgroups enforce. Raises OSError."""
        path = self.path(uid)
        if "memory" in self.enforced:
            write_file(path, "memory.max", str(limits.memory or "max"))
            # Without swap: else the engines of a user could use more than `memory`, and slow all users down
            with suppress(OSError):  # a kernel without swap does not have this file
                write_file(path, "memory.swap.max", "0" if limits.memory else "max")
        if "processes" in self.enforced:
            write_file(path, "pids.max", str(limits.processes or "max"))
        if "cpu_share" in self.enforced:
            # cpu_share is in percent of one processor; the kernel counts microseconds in each period
            quota_us = limits.cpu_share * PERIOD_US // 100 if limits.cpu_share else "max"
            write_file(path, "cpu.max", f"{quota_us} {PERIOD_US}")

    def change_limits(self, uid: int, limits: UserLimits) -> None:
        """Set other limits, if the user has a cgroup. Raises OSError."""
        if self.base and os.path.isdir(self.path(uid)):
            self.write_limits(uid, limits)

    def oom_kill_count(self, uid: int) -> int:
        """Return how many processes of a user the kernel has killed for lack of memory."""
        try:
            with open(os.path.join(self.path(uid), "memory.events"), encoding="utf-8") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        except (OSError, StopIteration):
            return 0

    def remove(self, uid: int) -> bool:
        """Remove a user's cgroup; return whether there is none any more. It stays if processes are in it."""
        if self.base:
            with suppress(OSError):
                os.rmdir(self.path(uid))
        if self.base and os.path.exists(self.path(uid)):
            return False
        self.uids.discard(uid)
        return True

    def remove_all(self) -> None:
        """Remove the cgroups of users. The kernel refuses to remove one with processes in it."""
        with suppress(OSError):  # there is no base, or the administrator has removed it
            for name in os.listdir(self.base):
                if name.startswith("user-"):
                    with suppress(OSError):
                        os.rmdir(os.path.join(self.base, name))


def remove_left_cgroups(setting: str) -> None:
    """Remove the users' cgroups that suexecme has left, because it was killed. setting: that of `cgroup`."""
    with suppress(NoCgroup, OSError):
        UserCgroups(find_base(setting)).remove_all()


def write_file(directory: str, name: str, text: str) -> None:
    """Write a text into a file of a cgroup. Raises OSError."""
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.write(text)


def find_base(setting: str, proc: str = "/proc") -> str:
    """Return the directory whose children X-Switch may make. Raises NoCgroup.

    setting: `auto`, `off` or a directory. proc: where the system describes this process.
    """
    if setting == "off":
        raise NoCgroup("cgroup is off")
    if os.geteuid() != 0:
        raise NoCgroup("X-Switch does not run as root")
    if setting != "auto":
        if not os.path.isfile(os.path.join(setting, "cgroup.controllers")):
            raise NoCgroup(f"{setting} is no directory of cgroups v2 (cgroup)")
        if has_processes(setting):
            raise NoCgroup(f"{setting} has processes: name a cgroup without any (cgroup)")
        return setting
    mount, own_cgroup = mount_of(proc), cgroup_of(proc)
    if not mount:
        raise NoCgroup("no file system of type cgroup2 is mounted")
    own_path = os.path.join(mount, own_cgroup.lstrip("/"))
    # The parent first: systemd puts X-Switch into a child of the delegated cgroup (DelegateSubgroup=)
    for path in (os.path.dirname(own_path), own_path):
        if path.startswith(mount) and is_delegated(path) and not has_processes(path):
            return path
    raise NoCgroup(f"{own_cgroup or '/'} is not delegated: {ADVICE}")


def enable_controllers(base: str) -> frozenset[str]:
    """Switch on the controllers for the children of `base`; return the limits that they keep. Raises NoCgroup."""
    with open(os.path.join(base, "cgroup.controllers"), encoding="utf-8") as file:
        available = file.read().split()
    enforced = set()
    for field, controller in CONTROLLERS.items():
        if controller in available:
            with suppress(OSError):
                write_file(base, "cgroup.subtree_control", f"+{controller}")
                enforced.add(field)
    if not enforced:
        names = ", ".join(CONTROLLERS.values())
        if set(available) & set(CONTROLLERS.values()):
            raise NoCgroup(
                f"{base}/cgroup.subtree_control cannot be written: no controller can be switched on"
            )
        raise NoCgroup(f"{base} has none of the controllers {names}")
    return frozenset(enforced)


def is_delegated(path: str) -> bool:
    """Return whether systemd has delegated a cgroup."""
    for name in DELEGATION_ATTRIBUTES:
        with suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    return False


def has_processes(path: str) -> bool:
    """Return whether processes are in a cgroup itself."""
    try:
        with open(os.path.join(path, "cgroup.procs"), encoding="utf-8") as file:
            return bool(file.read(1))
    except OSError:
        return False
