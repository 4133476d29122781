"""The warm parent of Python engines: warm_python.py ENGINE-FILE MODULE ...

Loads the engine and the modules, then forks for each order that comes on descriptor 0 (see privileged/warm.py):
the child takes its descriptors, limits and user, and is an engine, without an interpreter having to start. It is
forked twice, so that suexecme is its parent, learns of its end, and takes it along.

The child itself answers the order with its pid. If the parent did, and were killed after the fork and before the
answer, suexecme would start a second engine on the same sockets, beside one of which it does not know.
"""
# ruff: noqa: E402

import sys

FRESH = {*sys.modules}

import importlib
import importlib.util
import json
import os
import site
import socket
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name, path):
    """Return a module from its file, which no script will find by name."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    del sys.modules[name]
    return module


def main():
    """Fork for each order, until suexecme has gone."""
    process = load("xswitch_process", os.path.join(os.path.dirname(HERE), "process.py"))
    engine = load("xswitch_engine", sys.argv[1])
    for name in sys.argv[2:]:
        try:
            importlib.import_module(name)
        except ImportError as reason:
            print(f"{name} cannot be loaded beforehand: {reason}", file=sys.stderr)
    engine.FRESH = FRESH
    engine.state.remember()
    suexecme = os.getppid()
    orders = socket.socket(fileno=0)
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(orders, 65536, 4)
        except ConnectionError:
            return
        if not data:
            return
        order = json.loads(data)
        between = fork(orders)
        if not between:
            between = os.getpid()
            if fork(orders):
                os._exit(0)
            answer(orders, os.getpid())
            begin(process, engine, order, descriptors, between, suexecme)
        if between > 0:
            os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def fork(orders):
    """Fork as os.fork() does; where there is no room for a process, say so to suexecme and return -1."""
    try:
        return os.fork()
    except OSError:
        answer(orders, 0)
        return -1


def answer(orders, pid):
    """Tell suexecme the pid of a new engine, 0 where there is none. End if suexecme has gone or waits no longer."""
    try:
        orders.send(json.dumps({"pid": pid}).encode())
    except ConnectionError:
        os._exit(0)


def begin(process, engine, order, descriptors, between, suexecme):
    """Be an engine, to the end of this process."""
    account = process.Account(*order["account"])
    data, errors, control = descriptors
    try:
        process.arrange({0: data, 1: data, 2: errors, process.CONTROL: control})
        process.become(account, process.Limits(**order["limits"]))
        while os.getppid() == between:  # suexecme adopts it, unless that has gone, too
            time.sleep(0.0002)
        process.orphans_come_here()
        process.dies_with(suexecme)
        os.environ.clear()
        os.environ.update(order["environment"])
        site.USER_BASE = site.USER_SITE = None
        if os.path.isdir(site.getusersitepackages()):
            before = {*sys.modules}
            site.addsitedir(site.getusersitepackages())
            FRESH.update(sys.modules.keys() - before)
        engine.serve()
    except OSError as reason:
        os.write(2, f"the engine cannot be started: {reason.strerror}\n".encode())
        os._exit(process.CANNOT_START)
    finally:
        if sys.exc_info()[0] is None:
            os._exit(0)


if __name__ == "__main__":
    main()
