"""The first test of this lab: python3 first_test.py. It sends a few requests, and stops at the first failure."""

import time
from pathlib import Path

from clients import PAUSE_S, RESPONSE_TIMEOUT_S, Failed, run, step

CLOSE = " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
PROGRAMS = {
    "env": 'printf "Content-Type: text/plain\\n\\n"\n'
    'echo "[$SCRIPT_NAME][$PATH_INFO][$QUERY_STRING][$HTTP_X_COLOUR]"\n',
    "endless": 'sleep 1000 &\necho "$! $$" > "$(dirname "$0")/pids"\nwait\n',
    "nothing": 'echo "no head"\n',
}


@step("A program gets its environment.")
def environment(server):
    with server.connect() as client:
        client.send(f"GET /cgi-bin/env/3%20m?x=%2F{CLOSE}X-Colour: red\r\n\r\n")
        client.expect("\r\n\r\n", "The request of a program gets no response.")
        client.expect(
            "[/cgi-bin/env][/3 m][x=%2F][red]",
            "SCRIPT_NAME, PATH_INFO, QUERY_STRING and HTTP_X_COLOUR should be /cgi-bin/env, /3 m, x=%2F and red.",
        )


@step("The next program gets no variable of this request.")
def no_leftover(server):
    for field, expected in (("X-Colour: red\r\n", "red"), ("", "")):
        with server.connect() as client:
            client.send(f"GET /cgi-bin/env{CLOSE}{field}\r\n")
            client.expect(
                f"[/cgi-bin/env][][][{expected}]",
                f"HTTP_X_COLOUR should be {expected or 'absent'}: make a new dictionary for each request.",
            )


@step("A program that does not end is killed, with its children.", CGI_TIMEOUT="1")
def endless(server):
    with server.connect() as client:
        client.send(f"GET /cgi-bin/endless{CLOSE}\r\n")
        client.expect(
            " 504 ", "The program exceeds CGI_TIMEOUT, here 1 second. The server should answer 504."
        )
    pids = (Path(server.directory) / "cgi-bin" / "pids").read_text().split()
    deadline = time.monotonic() + RESPONSE_TIMEOUT_S
    while running := [pid for pid in pids if runs(pid)]:
        if time.monotonic() > deadline:
            raise Failed(
                f"The server has answered 504. Of the program and its child, {len(running)} still exist."
            )
        time.sleep(PAUSE_S)


def runs(pid):
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@step("A program without a head is answered with 502.")
def no_head(server):
    with server.connect() as client:
        client.send(f"GET /cgi-bin/nothing{CLOSE}\r\n")
        client.expect(" 502 ", "The output of the program has no head. The server should answer 502.")


def prepare(directory):
    (directory / "cgi-bin").mkdir()
    for name, text in PROGRAMS.items():
        program = directory / "cgi-bin" / name
        program.write_text("#!/bin/sh\n" + text)
        program.chmod(0o755)


if __name__ == "__main__":
    run(prepare)
