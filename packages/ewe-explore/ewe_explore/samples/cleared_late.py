"""Broken: a reader tests its list, then clears the event. A set() between the two is lost.

An event keeps a set() until a clear(). The clear() removes it, whether a thread has seen it or not.
"""

import threading


class Mailbox:
    def __init__(self):
        self.letters = []
        self.news = threading.Event()

    def put(self, letter):
        self.letters.append(letter)
        self.news.set()

    def get(self):
        while not self.letters:
            self.news.clear()
            self.news.wait()
        return self.letters.pop(0)


def scenario():
    mailbox = Mailbox()
    read = []
    reader = threading.Thread(target=lambda: read.append(mailbox.get()), name="reader")
    reader.start()
    mailbox.put("hello")
    reader.join()
    assert read == ["hello"]
