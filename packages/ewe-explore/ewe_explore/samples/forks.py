"""Broken: two philosophers, two forks. Each may hold its left fork and wait for the other one: a deadlock."""

import threading


def dine(left, right):
    with left:
        with right:
            pass


def scenario():
    forks = [threading.Lock() for _ in range(2)]
    first = threading.Thread(target=dine, args=(forks[0], forks[1]), name="Plato")
    second = threading.Thread(target=dine, args=(forks[1], forks[0]), name="Kant")
    first.start()
    second.start()
    first.join()
    second.join()
