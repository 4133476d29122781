"""Correct: one reader clears the event before it tests its list. A set() after the test then ends the wait."""

import threading


class Mailbox:
    def __init__(self):
        self.letters = []
        self.news = threading.Event()

    def put(self, letter):
        self.letters.append(letter)
        self.news.set()

    def get(self):
        self.news.clear()
        while not self.letters:
            self.news.wait()
            self.news.clear()
        return self.letters.pop(0)


def scenario():
    mailbox = Mailbox()
    read = []
    reader = threading.Thread(target=lambda: read.append(mailbox.get()), name="reader")
    reader.start()
    mailbox.put("hello")
    reader.join()
    assert read == ["hello"]
