"""Broken: a mailbox that tests its list before it takes the lock. A letter in between wakes no thread."""

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
        if not self.letters:
            with self.arrived:
                self.arrived.wait()
        with self.arrived:
            return self.letters.pop(0)


def scenario():
    mailbox = Mailbox()
    read = []
    reader = threading.Thread(target=lambda: read.append(mailbox.get()), name="reader")
    reader.start()
    mailbox.put("hello")
    reader.join()
    assert read == ["hello"]
