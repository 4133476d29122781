"""The preloaded parent of Python engines: preloaded_python.py ENGINE-FILE MODULE ...

Loads the engine and the modules, then forks for each order that comes on descriptor 0 (see
privileged/preloaded.py). The child takes its descriptors, limits and user, and becomes an engine without the start
of an interpreter. It is forked twice: then suexecme is its parent, learns of its end, and ends it when suexecme
itself ends.

The child itself answers the order with its pid. Suppose that the parent answered instead, and was killed after the
fork and before the answer: suexecme would start a second engine on the same sockets, and not know of the first.
"""
# ruff: noqa: E402

import sys

START_MODULES = {*sys.modules}

import importlib
import importlib.util
import json
import os
import site
import socket
import time

MAX_MESSAGE_BYTES, MAX_DESCRIPTORS = 64 * 1024, 4  # of one order: ewe/xswitch/channel.py has the same limits
ADOPTION_CHECK_S = 0.0002  # seconds between two checks whether suexecme has adopted this process
STALE = "has changed since it was preloaded; until X-Switch is restarted, new engines load their modules themselves"
HERE = os.path.dirname(os.path.abspath(__file__))


def load(name, path):
    """Load a module from its file, and remove it from sys.modules: no script finds it by its name."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    del sys.modules[name]
    return module


def main():
    """Fork for each order, until suexecme has ended."""
    process = load("xswitch_process", os.path.join(os.path.dirname(HERE), "process.py"))
    engine = load("xswitch_engine", sys.argv[1])
    for name in sys.argv[2:]:
        try:
            importlib.import_module(name)
        except ImportError as reason:
            print(f"{name} cannot be loaded beforehand: {reason}", file=sys.stderr)
    # The engine's own set has the modules of this parent, too. A script must not find those in sys.modules
    engine.START_MODULES = START_MODULES
    engine.state.note_initial_state()
    suexecme = os.getppid()
    orders = socket.socket(fileno=0)
    is_stale = False
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(orders, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
        except ConnectionError:
            return
        if not data:
            return
        order = json.loads(data)
        if not is_stale and (changed := engine.state.changed_library()):
            is_stale = True
            print(f"{changed} {STALE}", file=sys.stderr)
        middle_pid = fork(orders)  # 0 in the child, -1 if there is none
        if not middle_pid:
            middle_pid = os.getpid()
            if fork(orders):
                os._exit(0)  # the engine's parent ends: suexecme adopts the engine
            send_pid(orders, os.getpid())
            run_engine(process, engine, order, descriptors, middle_pid, suexecme)
        if middle_pid > 0:
            os.waitpid(middle_pid, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def fork(orders):
    """Fork as os.fork() does. If that fails, tell suexecme and return -1."""
    try:
        return os.fork()
    except OSError:
        send_pid(orders, 0)
        return -1


def send_pid(orders, pid):
    """Send suexecme the pid of a new engine, 0 if there is none. End if suexecme has ended or no longer waits."""
    try:
        orders.send(json.dumps({"pid": pid}).encode())
    except ConnectionError:
        os._exit(0)


def run_engine(process, engine, order, descriptors, middle_pid, suexecme):
    """Become the user of an order, and run an engine to the end of this process.

    process, engine: the loaded modules process.py and python.py. descriptors: those of the order. middle_pid: the
    pid of the parent. suexecme: its pid.
    """
    account = process.Account(*order["account"])
    data, errors, control = descriptors
    try:
        process.prepare_process({0: data, 1: data, 2: errors, process.CONTROL_DESCRIPTOR: control})
        limits = process.EngineLimits(**order["limits"])
        process.become(account, limits, order.get("cgroup", ""), order.get("namespace", ""))
        if order.get("namespace"):
            engine.state.forget_hidden_libraries()
        # prepare_process() has set the default actions. Python ignores some signals, SIGPIPE for example
        engine.state.restore_signal_handlers()
        process.prctl(process.PR_SET_DUMPABLE, 1, 0, 0, 0)  # the user owns /proc/self, as after execve(2)
        while os.getppid() == middle_pid:  # until suexecme adopts this process, or has ended, too
            time.sleep(ADOPTION_CHECK_S)
        process.become_subreaper()
        process.end_with_parent(suexecme)
        os.environ.clear()
        os.environ.update(order["environment"])
        add_user_packages()
        engine.serve()
    except OSError as reason:
        os.write(2, f"the engine cannot be started: {reason.strerror}\n".encode())
        os._exit(process.CANNOT_START)
    finally:
        if sys.exc_info()[0] is None:  # the engine has ended without an exception
            os._exit(0)


def add_user_packages():
    """Add the packages of the engine's user (`pip install --user`) to the search path, where `python3` has them.

    That is before the packages of the system: a user may have installed a newer version of one. A virtual
    environment may exclude users' packages (site.ENABLE_USER_SITE).
    """
    site.USER_BASE = site.USER_SITE = None  # those of the account before: compute them again
    if not site.ENABLE_USER_SITE or not os.path.isdir(site.getusersitepackages()):
        return
    names_before = {*sys.modules}
    system_directories = site.getsitepackages([sys.base_prefix, sys.base_exec_prefix])
    first = next((index for index, path in enumerate(sys.path) if path in system_directories), len(sys.path))
    system_paths = sys.path[first:]
    del sys.path[first:]
    site.addsitedir(site.USER_SITE)
    sys.path += [path for path in system_paths if path not in sys.path]
    START_MODULES.update(sys.modules.keys() - names_before)


if __name__ == "__main__":
    main()
