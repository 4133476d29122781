"""Broken: three philosophers, three forks. Each may hold its left fork and wait for the next one: a deadlock."""

import threading


def dine(left, right):
    with left:
        with right:
            pass


def scenario():
    forks = [threading.Lock() for _ in range(3)]
    for index, name in enumerate(("Plato", "Kant", "Arendt")):
        threading.Thread(target=dine, args=(forks[index], forks[(index + 1) % 3]), name=name).start()
