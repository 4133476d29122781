"""The solutions of the labs with one fault each, in Python, C and Go: a fault is an edit of the solution's text.

The mutants of mutants.py and mutants.c are other programs than the solutions. These are what a student hands in:
the lab's files, built by the lab's rules, with the sources beside the program (queue-races needs them).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import faults_in_c_and_go
from support import needs

from ewe_classroom.course.labs import lab

NAMES = {"python": "Python", "c": "C", "go": "Go"}


class Fault(NamedTuple):
    """One fault. check: the check that must catch it, with one of the words `says` ("|" between them)."""

    name: str
    what: str
    lab: str
    language: str
    check: str
    says: str
    edits: tuple[tuple[str, ...], ...]  # file, text, the text in its place

    @property
    def row(self) -> tuple[str, str, str, str]:
        return (self.what, self.check, self.lab, self.says)


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, lab: str, language: str, check: str, says: str, what: str, *edits: tuple[str, ...]
) -> None:
    """Register a fault. edits: a text of the server's file, and the text in its place; or a file, and these two."""
    file = {"python": "server.py", "c": "server.c", "go": "server.go"}[language]
    full = f"{name}, {lab} in {NAMES[language]}"
    assert full not in FAULTS
    FAULTS[full] = Fault(full, what, lab, language, check, says, tuple((file, *edit)[-3:] for edit in edits))


def write(name: str, directory: Path) -> list[str]:
    """Write and build the server with a fault in a directory; return the arguments of ewe-grade."""
    found = FAULTS[name]
    files = lab(found.lab).files(lab(found.lab).variant(found.language), solved=True)
    for file, before, after in found.edits:
        assert before in files[file], f"{name}: {file} of the solution has no {before!r}"
        files[file] = files[file].replace(before, after)
    for file, text in files.items():
        (directory / file).write_text(text)
    return build(found.language, directory)


def build(language: str, directory: Path) -> list[str]:
    """Build a server by the lab's rules; return the arguments of ewe-grade."""
    directory.chmod(0o755)
    if language == "python":
        return [str(directory / "server.py")]
    needs.require("gcc" if language == "c" else "Go")
    command = ["make", "-s", "-f", "Makefile"] if language == "c" else ["go", "build", "-o", "server", "."]
    variables = {**os.environ, "GOTOOLCHAIN": "local", "GOPROXY": "off"}
    subprocess.run(command, cwd=directory, check=True, env=variables, capture_output=True)
    return ["--command", f"{directory}/server {{port}} {{root}} {{workers}}"]


# The queue in C

LOCK_C, UNLOCK_C = "    pthread_mutex_lock(&queue.lock);\n", "    pthread_mutex_unlock(&queue.lock);\n"
PUT_C = """static void put(int item)
{
    pthread_mutex_lock(&queue.lock);
"""
SIGNAL_C = "    pthread_cond_signal(&queue.not_empty);\n    pthread_mutex_unlock(&queue.lock);\n"
CLOSED_C = "    pthread_mutex_lock(&queue.lock);\n    queue.closed = true;\n"
WAIT_FULL_C = "    while (queue.count == ROOM)\n"
WAIT_EMPTY_C = "    while (queue.count == 0 && !queue.closed)\n"
BUSY_C = """        pthread_mutex_lock(&queue.lock);
        queue.busy--;
        pthread_cond_signal(&queue.idle);
        pthread_mutex_unlock(&queue.lock);
"""
fault(
    "PutUnlocked",
    "pool",
    "c",
    "queue-races",
    "a data race on `queue`",
    "put() takes no lock.",
    (WAIT_FULL_C + "        pthread_cond_wait(&queue.not_full, &queue.lock);\n", ""),
    (PUT_C, PUT_C.replace(LOCK_C, "")),
    (SIGNAL_C, SIGNAL_C.replace(UNLOCK_C, "")),
)
fault(
    "IfInGet",
    "pool",
    "c",
    "queue-races",
    "waits after an `if`",
    "get() tests once, by `if`.",
    (WAIT_EMPTY_C, WAIT_EMPTY_C.replace("while", "if")),
)
fault(
    "IfInPut",
    "pool",
    "c",
    "queue-races",
    "waits after an `if`",
    "put() tests once, by `if`.",
    (WAIT_FULL_C, WAIT_FULL_C.replace("while", "if")),
)
fault(
    "SignalsTheFirst",
    "pool",
    "c",
    "queue-races",
    "a wake-up is lost",
    "put() signals only when the queue was empty.",
    (SIGNAL_C, "    if (queue.count == 1)\n    " + SIGNAL_C),
)
fault(
    "NobodyToldOfRoom",
    "pool",
    "c",
    "queue-races",
    "a wake-up is lost",
    "get() never signals that there is room.",
    ("        pthread_cond_signal(&queue.not_full);\n", ""),
)
fault(
    "CloseUnlocked",
    "pool",
    "c",
    "queue-races",
    "a data race on `queue`",
    "The stop sets `closed` without the lock.",
    (CLOSED_C, "    queue.closed = true;\n" + LOCK_C),
)
fault(
    "CloseWakesOne",
    "pool",
    "c",
    "queue-races",
    "is not woken by the stop",
    "The stop wakes one worker, and waits for the end of all.",
    ("pthread_cond_broadcast", "pthread_cond_signal"),
    ("        pthread_detach(thread);\n", "        threads[number] = thread;\n"),
    ("static void stop(int", "static pthread_t threads[MAX_WORKERS];\n\nstatic void stop(int"),
    (
        "    drain();\n",
        "    drain();\n    for (int number = 0; number < workers; number++)\n"
        "        pthread_join(threads[number], NULL);\n",
    ),
)
fault(
    "BusyUnlocked",
    "pool",
    "c",
    "queue-races",
    "neither|holds none",
    "Workers count themselves without the lock.",
    (
        BUSY_C,
        BUSY_C.replace(
            "        pthread_mutex_lock(&queue.lock);\n        queue.busy--;\n",
            "        queue.busy--;\n        pthread_mutex_lock(&queue.lock);\n",
        ),
    ),
)
fault(
    "OtherLock",
    "pool",
    "c",
    "queue-races",
    "hold different locks",
    "put() and get() have a lock each.",
    (
        "static void stop(int",
        "static pthread_mutex_t other = PTHREAD_MUTEX_INITIALIZER;\n\nstatic void stop(int",
    ),
    (PUT_C, PUT_C.replace("&queue.lock", "&other")),
    (SIGNAL_C, SIGNAL_C.replace("&queue.lock", "&other")),
    ("&queue.not_full, &queue.lock", "&queue.not_full, &other"),
)
fault(
    "MessageQueue",
    "pool",
    "c",
    "queue-races",
    "uses mq_open()",
    "The queue is one of the system's.",
    ("    root = argv[2];\n", '    root = argv[2];\n    mq_open("/queue", 0);\n'),
    ("#include <poll.h>\n", "#include <mqueue.h>\n#include <poll.h>\n"),
)

# The queue in Go

PUT_GO = """func (queue *Queue) Put(item net.Conn) {
	queue.lock.Lock()
	defer queue.lock.Unlock()
"""
WAIT_FULL_GO, WAIT_EMPTY_GO = (
    "	for len(queue.items) == room {\n",
    "	for len(queue.items) == 0 && !queue.closed {\n",
)
SIGNAL_GO = "	queue.notEmpty.Signal()\n"
CLOSE_GO = """func (queue *Queue) Close() {
	queue.lock.Lock()
	defer queue.lock.Unlock()
"""
fault(
    "PutUnlocked",
    "pool",
    "go",
    "queue-races",
    "a data race on",
    "Put takes no lock.",
    (PUT_GO, PUT_GO.partition("\n")[0] + "\n"),
    (WAIT_FULL_GO + "		queue.notFull.Wait()\n	}\n", ""),
)
fault(
    "IfInGet",
    "pool",
    "go",
    "queue-races",
    "waits after an `if`",
    "Get tests once, by `if`.",
    (WAIT_EMPTY_GO, WAIT_EMPTY_GO.replace("for", "if")),
)
fault(
    "IfInPut",
    "pool",
    "go",
    "queue-races",
    "waits after an `if`",
    "Put tests once, by `if`, and the queue is an array of fixed size.",
    (WAIT_FULL_GO, WAIT_FULL_GO.replace("for", "if")),
    (
        "	queue.items = append(queue.items, item)\n",
        '	if len(queue.items) == room {\n		panic("no room")\n	}\n'
        "	queue.items = append(queue.items, item)\n",
    ),
)
fault(
    "SignalsTheFirst",
    "pool",
    "go",
    "queue-races",
    "a wake-up is lost",
    "Put signals only when the queue was empty.",
    (SIGNAL_GO, "	if len(queue.items) == 1 {\n		queue.notEmpty.Signal()\n	}\n"),
)
fault(
    "NobodyToldOfRoom",
    "pool",
    "go",
    "queue-races",
    "a wake-up is lost",
    "Get never signals that there is room.",
    ("	queue.notFull.Signal()\n", ""),
)
fault(
    "CloseUnlocked",
    "pool",
    "go",
    "queue-races",
    "a data race on",
    "Close takes no lock.",
    (CLOSE_GO, CLOSE_GO.partition("\n")[0] + "\n"),
)
fault(
    "CloseWakesOne",
    "pool",
    "go",
    "queue-races",
    "is not woken by the stop",
    "Close wakes one worker.",
    ("	queue.notEmpty.Broadcast()\n", SIGNAL_GO),
)
fault(
    "CountUnlocked",
    "pool",
    "go",
    "queue-races",
    "a data race on",
    "Workers count their clients without a lock.",
    (
        "					Converse(connection, root)\n",
        "					served++\n					Converse(connection, root)\n",
    ),
    ("func main() {\n", "var served int\n\nfunc main() {\n"),
)
fault(
    "ChannelAsQueue",
    "pool",
    "go",
    "queue-races",
    "a channel as a queue",
    "The queue is a buffered channel.",
    ("	queue.Close()\n", "	close(waiting)\n	queue.Close()\n"),
    (
        "	queue := NewQueue()\n",
        "	queue := NewQueue()\n		waiting := make(chan net.Conn, room)\n"
        "		go func() {\n"
        "			for connection := range waiting {\n"
        "				queue.Put(connection)\n"
        "			}\n"
        "		}()\n",
    ),
    (
        "			queue.Put(connection)\n		}\n		close",
        "			waiting <- connection\n		}\n		close",
    ),
)

# The queue in Python

fault(
    "LibraryQueue",
    "pool",
    "python",
    "queue-races",
    "uses the module queue",
    "The queue is queue.Queue.",
    ("import signal\n", "import queue\nimport signal\n"),
)
fault(
    "Executor",
    "pool",
    "python",
    "queue-races",
    "uses concurrent.futures.ThreadPoolExecutor",
    "The workers are those of a ThreadPoolExecutor.",
    (
        "from collections import deque\n",
        "from collections import deque\nfrom concurrent.futures import ThreadPoolExecutor\n",
    ),
)
fault(
    "IfInGet",
    "pool",
    "python",
    "queue-races",
    "nobody has called close",
    "get() tests once, by `if`.",
    (
        "            while not self.items and not self.closed:\n",
        "            if not self.items and not self.closed:\n",
    ),
)
fault(
    "SignalsTheFirst",
    "pool",
    "python",
    "queue-races",
    "deadlock",
    "put() notifies only when the queue was empty.",
    (
        "            self.not_empty.notify()\n            return True\n",
        "            if len(self.items) == 1:\n                self.not_empty.notify()\n            return True\n",
    ),
)

# Shared data of threads

fault(
    "CountUnlocked",
    "thread",
    "c",
    "shared-data",
    "a data race on `threads`",
    "Threads count themselves without the lock.",
    ("    pthread_mutex_lock(&lock);\n    threads--;\n", "    threads--;\n    pthread_mutex_lock(&lock);\n"),
)
fault(
    "SharedArgument",
    "thread",
    "c",
    "shared-data",
    "a data race on",
    "The argument of each thread is one variable.",
    ("static void stop(int", "static int current;\n\nstatic void stop(int"),
    ("    int connection = (int)(intptr_t)argument;\n", "    int connection = *(int *)argument;\n"),
    ("    pthread_t thread;\n", "    pthread_t thread;\n    current = connection;\n"),
    ("run_conversation, (void *)(intptr_t)connection)", "run_conversation, &current)"),
)
fault(
    "LockOrder",
    "thread",
    "c",
    "shared-data",
    "two locks in two orders",
    "Threads take two locks in two orders.",
    (
        "static int threads;",
        "static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;\nstatic int threads;",
    ),
    (
        "    pthread_mutex_lock(&lock);\n    threads--;\n",
        "    pthread_mutex_lock(&log_lock);\n    pthread_mutex_lock(&lock);\n    threads--;\n",
    ),
    (
        "    pthread_cond_signal(&changed);\n    pthread_mutex_unlock(&lock);\n",
        "    pthread_cond_signal(&changed);\n"
        "    pthread_mutex_unlock(&lock);\n"
        "    pthread_mutex_unlock(&log_lock);\n",
    ),
    (
        "    threads++;\n    pthread_mutex_unlock(&lock);\n",
        "    threads++;\n    pthread_mutex_lock(&log_lock);\n    pthread_mutex_unlock(&log_lock);\n"
        "    pthread_mutex_unlock(&lock);\n",
    ),
)
fault(
    "MapUnlocked",
    "thread",
    "go",
    "shared-data",
    "a data race on|concurrent map",
    "All goroutines write to one map.",
    (
        "				Converse(connection, root)\n",
        "				seen[connection.RemoteAddr().String()]++\n"
        "				Converse(connection, root)\n",
    ),
    ("func main() {\n", "var seen = map[string]int{}\n\nfunc main() {\n"),
)
fault(
    "CountUnlocked",
    "thread",
    "go",
    "shared-data",
    "a data race on",
    "Goroutines count themselves without a lock.",
    (
        "				defer running.Done()\n",
        "				defer running.Done()\n"
        "				active++\n"
        "				defer func() { active-- }()\n",
    ),
    ("func main() {\n", "var active int\n\nfunc main() {\n"),
)

# Faults of the other labs in C and Go

OPEN_C = "    if (!realpath(name, real) || strncmp(real, base, length) != 0 || real[length] != '/')\n"
PREFIX_GO = '	if !strings.HasPrefix(file, base+"/") {\n		return nil, os.ErrNotExist\n	}\n'
TAKE_GO = "	item := queue.items[0]\n	queue.items = queue.items[1:]\n"
TAKE_C = "        item = queue.items[queue.first];\n        queue.first = (queue.first + 1) % ROOM;\n"
CONVERSATION_C, CONVERSATION_GO = "conversation.c", "conversation.go"

fault(
    "OutsideTheRoot",
    "serial",
    "c",
    "outside",
    "outside",
    "The file may lie outside of the root.",
    (CONVERSATION_C, OPEN_C, "    (void)length;\n    if (!realpath(name, real))\n"),
)
fault(
    "OutsideTheRoot",
    "serial",
    "go",
    "outside",
    "outside",
    "The file may lie outside of the root.",
    (CONVERSATION_GO, PREFIX_GO, ""),
)
fault(
    "FoundNothing",
    "serial",
    "c",
    "not-found",
    "404",
    "A missing file gets the status 200.",
    (
        CONVERSATION_C,
        "        return refuse(404, !is_head);\n    struct",
        "        return refuse(200, !is_head);\n    struct",
    ),
)
fault(
    "FoundNothing",
    "serial",
    "go",
    "not-found",
    "404",
    "A missing file gets the status 200.",
    (
        CONVERSATION_GO,
        "		return refuse(404, isHead), false\n",
        "		return refuse(200, isHead), false\n",
    ),
)
fault(
    "EndsAfterOne",
    "serial",
    "go",
    "answers",
    "ended|connect",
    "The program ends after one client.",
    ("			connection.Close()\n", "			connection.Close()\n			return\n"),
)
fault(
    "NeverCloses",
    "serial",
    "c",
    "keep-alive",
    "stays open",
    "Connections are never closed.",
    ("        close(connection);\n", ""),
)
fault(
    "SecondForgotten",
    "serial",
    "c",
    "pipelined",
    "second|2",
    "Bytes of the next request are forgotten.",
    (CONVERSATION_C, "        used -= length; ", "        used = 0; length = 0; "),
)
fault(
    "SecondForgotten",
    "serial",
    "go",
    "pipelined",
    "second|2",
    "Bytes of the next request are forgotten.",
    (CONVERSATION_GO, "		buffer = append([]byte(nil), rest...)\n", "		_, buffer = rest, nil\n"),
)
fault(
    "NoLimit",
    "serial",
    "go",
    "oversized",
    "limit|MB|memory|head",
    "The head may be of any length.",
    (CONVERSATION_GO, "			if len(buffer) > maxHead {\n", "			if len(buffer) < 0 {\n"),
)
fault(
    "NoReap",
    "fork",
    "c",
    "zombies",
    "waitpid",
    "No child is reaped.",
    ("    while (waitpid(-1, NULL, WNOHANG) > 0)\n        children--;\n", "    children--;\n"),
)
fault(
    "ReapsOne",
    "fork",
    "c",
    "zombies",
    "zombie",
    "Each SIGCHLD reaps one child.",
    ("    while (waitpid(-1, NULL, WNOHANG) > 0)\n", "    if (waitpid(-1, NULL, WNOHANG) > 0)\n"),
)
fault(
    "ParentKeeps",
    "fork",
    "c",
    "parent-lets-go",
    "close the connection after fork",
    "The parent keeps the connection open.",
    ("    close(connection);    /* the connection ends when the child closes its copy */\n", ""),
)
fault(
    "NoReap",
    "fork",
    "go",
    "zombies",
    "waitpid|zombie",
    "No child is reaped.",
    (
        "		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)\n",
        "		pid, err := 0, error(nil)\n",
    ),
)
fault(
    "ServesItself",
    "fork",
    "c",
    "progress",
    "the loop that accepts also serves",
    "The parent serves.",
    (
        "    pid_t pid = fork();\n    if (pid == 0) {\n",
        "    converse(connection, root);\n    pid_t pid = fork();\n    if (pid == 0) {\n        _exit(0);\n",
    ),
)
fault(
    "ServesItself",
    "thread",
    "go",
    "progress",
    "the loop that accepts also serves",
    "main() serves the clients.",
    ("			go func() {\n", "			func() {\n"),
)
fault(
    "NeverCloses",
    "thread",
    "go",
    "keep-alive",
    "stays open",
    "Connections are never closed.",
    (
        "				defer connection.Close() // runs before Done: the last defer is the first to run\n",
        "",
    ),
)
fault(
    "SharedBuffer",
    "thread",
    "c",
    "own-answers",
    "share a buffer",
    "All threads read into one buffer.",
    (
        CONVERSATION_C,
        "    char buffer[MAX_HEAD_BYTES + 1];\n    size_t used",
        "    static char buffer[MAX_HEAD_BYTES + 1];\n    size_t used",
    ),
)
fault(
    "NoMsgNosignal",
    "thread",
    "c",
    "reset-in-response",
    "ignore SIGPIPE",
    "A send may raise SIGPIPE.",
    (CONVERSATION_C, "MSG_NOSIGNAL", "0"),
)
fault(
    "OneMore",
    "pool",
    "c",
    "progress",
    "more workers than asked for",
    "There are n+1 workers.",
    ("number < workers; number++", "number <= workers; number++"),
)
fault(
    "OneMore",
    "pool",
    "go",
    "progress",
    "more workers than asked for",
    "There are n+1 workers.",
    ("number < workers; number++", "number <= workers; number++"),
)
fault(
    "OneFewer",
    "pool",
    "c",
    "progress",
    "3 workers or fewer take connections",
    "There are n-1 workers.",
    ("number < workers; number++", "number + 1 < workers; number++"),
)
fault(
    "OneFewer",
    "pool",
    "go",
    "progress",
    "3 workers or fewer take connections",
    "There are n-1 workers.",
    ("number < workers; number++", "number + 1 < workers; number++"),
)
fault(
    "LastComeFirst",
    "pool",
    "go",
    "fifo",
    "stack",
    "The queue is a stack.",
    (
        TAKE_GO,
        "	last := len(queue.items) - 1\n	item := queue.items[last]\n	queue.items = queue.items[:last]\n",
    ),
)
fault(
    "LastComeFirst",
    "pool",
    "c",
    "fifo",
    "stack",
    "The queue is a stack.",
    (TAKE_C, "        item = queue.items[(queue.first + queue.count - 1) % ROOM];\n"),
)
fault(
    "SendBlocks",
    "event",
    "c",
    "slow-readers",
    "slow|stalled",
    "The sockets block.",
    ("SOCK_NONBLOCK | SOCK_CLOEXEC);\n    if", "SOCK_CLOEXEC);\n    if"),
)
fault(
    "SendBlocks",
    "event",
    "go",
    "slow-readers",
    "slow|stalled",
    "The sockets block.",
    (
        "syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)\n	if err == syscall.EAGAIN",
        "syscall.SOCK_CLOEXEC)\n	if err == syscall.EAGAIN",
    ),
)
fault(
    "OneSend",
    "event",
    "go",
    "answers",
    "bytes",
    "What one send leaves is forgotten.",
    ("		client.outgoing = client.outgoing[count:]\n", "		client.outgoing = nil\n"),
)
fault(
    "OneSend",
    "event",
    "c",
    "answers",
    "bytes",
    "What one send leaves is forgotten.",
    ("        if (client->sent < response->size)\n            return;\n", ""),
)

for entry in faults_in_c_and_go.ENTRIES:
    fault(*entry)
