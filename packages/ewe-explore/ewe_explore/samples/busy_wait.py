"""Broken: two threads wait for each other, and each tests again and again without a pause (a busy wait)."""

import threading


def scenario():
    state = {"ready": False, "asked": False}

    def work():
        while not state["asked"]:
            pass
        state["ready"] = True

    threading.Thread(target=work, name="worker").start()
    while not state["ready"]:
        pass
    state["asked"] = True
