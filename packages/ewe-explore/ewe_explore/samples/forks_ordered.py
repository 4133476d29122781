"""Correct: three philosophers, three forks. Each takes the lower number first: no circle of waits is possible."""

import threading


def dine(forks, left, right):
    first, second = min(left, right), max(left, right)
    with forks[first]:
        with forks[second]:
            pass


def scenario():
    forks = [threading.Lock() for _ in range(3)]
    names = ("Plato", "Kant", "Arendt")
    threads = [
        threading.Thread(target=dine, args=(forks, index, (index + 1) % 3), name=name)
        for index, name in enumerate(names)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
