"""Correct: a mailbox that tests its list and waits under one lock."""

import threading


class Mailbox:
    def __init__(self):
        self.letters = []
        self.arrived = threading.Condition()

    def put(self, letter):
        with self.arrived:
            self.letters.append(letter)
            self.arrived.notify()

    def get(self):
        with self.arrived:
            while not self.letters:
                self.arrived.wait()
            return self.letters.pop(0)


def scenario():
    mailbox = Mailbox()
    read = []
    reader = threading.Thread(target=lambda: read.append(mailbox.get()), name="reader")
    reader.start()
    mailbox.put("hello")
    reader.join()
    assert read == ["hello"]
