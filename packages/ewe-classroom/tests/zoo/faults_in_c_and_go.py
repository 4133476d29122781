"""More faults of the solutions in C and Go: those that the language itself makes easy.

solution_faults.py registers them. Each entry has the arguments of its function fault(): the name, the lab, the
language, the check, one of the words that this check must say, the fault in a sentence, and the edits.
"""

from __future__ import annotations

CONVERSATION_C, CONVERSATION_GO = "conversation.c", "conversation.go"
SEND_C = "MSG_NOSIGNAL"
PAUSED_C = "        usleep(PAUSE_US);\n            continue;\n"
LOOKS_AT_TIME_C = "        if (now - client->last > SILENCE_S || (stopping"
LOOKS_AT_TIME_GO = "\t\tif time.Since(client.last) > silence || (loop.stopping"
STOP_WATCHING_C = (
    "            watch_listener(false); /* no descriptor is free: epoll_pwait() would return at once"
)
STOP_WATCHING_GO = (
    "\t\tloop.listen(false) // no descriptor is left: epoll_wait() would return at once, again and again\n"
)
PAUSE_GO = "\t\t\t\ttime.Sleep(pause)\n\t\t\t\tcontinue\n"
COPY_GO = "\t\t\tconnection.Close() // the connection would not end while the parent has a copy\n"

Entry = tuple[str | tuple[str, ...], ...]

SERIAL: list[Entry] = [
    (
        "NoMsgNosignal", "serial", "c", "reset-in-response", "ignore SIGPIPE", "A send may raise SIGPIPE.",
        (CONVERSATION_C, SEND_C, "0"),
    ),
    (
        "FilesStayOpen", "serial", "c", "descriptors", "hello.txt", "Each file that was sent stays open.",
        (CONVERSATION_C, "    close(file);\n    if (left", "    if (left"),
    ),
    (
        "Overflow", "serial", "c", "oversized", "past the end of a buffer",
        "recv() may write past the end of the buffer.",
        (CONVERSATION_C, "            if (used == sizeof buffer) {\n",
         "            if (used == 1 << 30) {\n"),
        (CONVERSATION_C, "recv(connection, buffer + used, sizeof buffer - used, 0)",
         "recv(connection, buffer + used, 65536, 0)"),
    ),
    (
        "NeverCloses", "serial", "go", "keep-alive", "stays open", "Connections are never closed.",
        ("\t\t\tconnection.Close()\n", ""),
    ),
    (
        "IgnoresWriteError", "serial", "go", "reset-in-response", "goes on running",
        "The error of Write is ignored, and the loop goes on without end.",
        (CONVERSATION_GO, "\t\t\tcount, err := connection.Write(piece)\n\t\t\tif err != nil {\n"
         "\t\t\t\treturn\n\t\t\t}\n",
         "\t\t\tcount, _ := connection.Write(piece)\n"),
    ),
    (
        "OneRead", "serial", "go", "byte-by-byte", "one recv()",
        "What one Read returns counts as the whole request.",
        (CONVERSATION_GO, "\t\t\thead, rest = SplitHead(buffer)\n\t\t}\n",
         "\t\t\tif head, rest = SplitHead(buffer); head == nil {\n\t\t\t\thead, rest = buffer, nil\n"
         "\t\t\t}\n\t\t}\n"),
    ),
]  # fmt: skip

FORK: list[Entry] = [
    (
        "ChildListens", "fork", "c", "parent-lets-go", "hold the listening socket",
        "Each child keeps the listening socket.",
        ("        close(listener);\n        converse", "        (void)listener;\n        converse"),
    ),
    (
        "DiesOfEintr", "fork", "c", "answers", "Interrupted system call",
        "SIGCHLD interrupts ppoll(), and that ends the server.",
        ("        if (ppoll(&watched, 1, NULL, &none) <= 0)\n            continue;\n",
         '        if (ppoll(&watched, 1, NULL, &none) < 0) {\n            perror("ppoll");\n'
         '            return 1;\n'
         "        }\n"),
    ),
    (
        "WaitBlocks", "fork", "c", "progress", "1 in wait()",
        "waitpid() without WNOHANG waits for each child that still runs.",
        ("waitpid(-1, NULL, WNOHANG)", "waitpid(-1, NULL, 0)"),
    ),
    (
        "ChildGoesOn", "fork", "c", "who-works", "a child does not call exit",
        "The child has no _exit(), and goes on in the loop of the parent.",
        ("        _exit(0); /* the child must not continue the loop of the parent */\n", ""),
    ),
    (
        "DropsDownloads", "fork", "c", "drain", "ended after", "The parent ends at once after SIGTERM.",
        ("    time_t deadline = time(NULL) + GRACE_S;\n", "    time_t deadline = time(NULL);\n"),
    ),
    (
        "ParentKeeps", "fork", "go", "parent-lets-go", "close the connection after fork",
        "The parent keeps the connection open.",
        (COPY_GO, ""),
        ("\t\tchildren.Drain()\n", "\t\tchildren.Drain()\n\t\tkept = nil\n"),
        ("\t\t\tif err == nil {\n\t\t\t\terr = children.Start(copied)\n",
         "\t\t\tkept = append(kept, connection)\n\t\t\tif err == nil {\n"
         "\t\t\t\terr = children.Start(copied)\n"),
        ("func main() {\n", "var kept []net.Conn\n\nfunc main() {\n"),
    ),
    (
        "ReapsOne", "fork", "go", "zombies", "zombie", "Each SIGCHLD reaps one child.",
        ("\t\tdelete(children.pids, pid)\n\t}\n", "\t\tdelete(children.pids, pid)\n\t\tbreak\n\t}\n"),
    ),
    (
        "NoDrain", "fork", "go", "stop", "live on", "The parent does not wait for its children at the end.",
        ("\t\tchildren.Drain()\n\t})\n", "\t})\n"),
    ),
]  # fmt: skip

THREAD: list[Entry] = [
    (
        "NeverCloses", "thread", "c", "keep-alive", "stays open", "Connections are never closed.",
        ("    close(connection);\n    pthread_mutex_lock(&lock);\n    threads--;\n    pthread_cond",
         "    pthread_mutex_lock(&lock);\n    threads--;\n    pthread_cond"),
    ),
    (
        "NotDetached", "thread", "c", "memory", "keeps its stack", "No thread is detached or joined.",
        ("        pthread_detach(thread); /* no thread joins it; its resources are freed at its end */\n",
         ""),
    ),
    (
        "TriesAgain", "thread", "c", "pause", "calls it again at once", "accept() is called again at once.",
        ("        else if (errno != EINTR)\n            usleep(PAUSE_US);\n", ""),
    ),
    (
        "DropsDownloads", "thread", "c", "drain", "ended after", "The server does not wait for its threads.",
        ("    deadline.tv_sec += GRACE_S;\n", ""),
    ),
    (
        "SharedRequest", "thread", "c", "shared-data", "in parse()", "The request is a static variable.",
        (CONVERSATION_C, "    struct request request;\n", "    static struct request request;\n"),
    ),
    (
        "DiesOfEmfile", "thread", "go", "descriptors-used-up", "descriptor",
        "The error of Accept is ignored, and there is no connection.",
        ("\t\t\tif err != nil { // no descriptor is free: another conversation must end first\n"
         + PAUSE_GO + "\t\t\t}\n",
         "\t\t\t_ = time.Second\n"),
    ),
    (
        "TriesAgain", "thread", "go", "pause", "calls it again at once", "Accept is called again at once.",
        ("\t\t\t\ttime.Sleep(pause)\n\t\t\t\tcontinue\n", "\t\t\t\t_ = time.Second\n\t\t\t\tcontinue\n"),
    ),
    (
        "DropsDownloads", "thread", "go", "drain", "ended after",
        "The server does not wait for its goroutines.",
        ("\t\tDrain(&running)\n", ""),
    ),
    (
        "LoopVariable", "thread", "go", "shared-data", "a data race on",
        "All goroutines use the variable of the loop.",
        ("\t\tvar running sync.WaitGroup\n", "\t\tvar running sync.WaitGroup\n\t\tvar connection net.Conn\n"
         "\t\tvar err error\n"),
        ("\t\t\tconnection, err := listener.Accept()\n", "\t\t\tconnection, err = listener.Accept()\n"),
    ),
    (
        "SharedBuffer", "thread", "go", "shared-data", "a data race on",
        "All goroutines read into one buffer.",
        (CONVERSATION_GO, "\treceived := make([]byte, 4096)\n", ""),
        (CONVERSATION_GO, "var emptyLine", "var received = make([]byte, 4096)\n\nvar emptyLine"),
    ),
]  # fmt: skip

POOL: list[Entry] = [
    (
        "StopForgetsQueue", "pool", "c", "queue-races", "the stop loses connections",
        "get() returns -1 as soon as the queue is closed, before the rest of the queue.",
        ("    if (queue.count > 0) {\n        item", "    if (queue.count > 0 && !queue.closed) {\n"
         "        item"),
        ("(queue.count > 0 || queue.busy > 0) &&", "queue.busy > 0 &&"),
    ),
    (
        "StopForgetsQueue", "pool", "go", "queue-races", "the stop loses connections",
        "Get returns nil as soon as the queue is closed, before the rest of the queue.",
        ("\tif len(queue.items) == 0 {\n\t\treturn nil\n", "\tif len(queue.items) == 0 || queue.closed {\n"
         "\t\treturn nil\n"),
    ),
    (
        "PutAfterEnd", "pool", "go", "queue-races", "not woken by the stop",
        "SIGTERM closes the queue while Put waits, and all workers end.",
        ("\tif len(queue.items) == 0 {\n\t\treturn nil\n", "\tif len(queue.items) == 0 || queue.closed {\n"
         "\t\treturn nil\n"),
        ("\t\tfor {\n\t\t\tconnection, err", "\t\tstop := make(chan os.Signal, 1)\n"
         "\t\tsignal.Notify(stop, syscall.SIGTERM)\n"
         "\t\tgo func() {\n\t\t\t<-stop\n\t\t\tqueue.Close()\n\t\t}()\n\t\tfor {\n\t\t\tconnection, err"),
        ('\t"net"\n\t"sync"\n', '\t"net"\n\t"os"\n\t"os/signal"\n\t"sync"\n\t"syscall"\n'),
    ),
    (
        "RingOffByOne", "pool", "c", "queue-races", "without a response|not its own file",
        "put() takes the array for one place smaller than get() does.",
        ("(queue.first + queue.count) % ROOM] = item", "(queue.first + queue.count) % (ROOM - 1)] = item"),
    ),
    (
        "KeepsTheLock", "pool", "c", "queue-races", "is not woken by the stop",
        "get() returns at the stop, and keeps the lock.",
        ("    if (queue.count > 0) {\n        item", "    if (queue.count == 0)\n        return -1;\n"
         "    if (queue.count > 0) {\n        item"),
    ),
    (
        "BusyStays", "pool", "c", "queue-races", "is not woken by the stop",
        "No worker says that its conversation has ended.",
        ("        queue.busy--;\n", ""),
    ),
    (
        "NoDone", "pool", "go", "queue-races", "is not woken by the stop", "No worker calls Done.",
        ("\t\t\t\tdefer running.Done()\n", ""),
    ),
]  # fmt: skip

EVENT: list[Entry] = [
    (
        "NoMsgNosignal", "event", "c", "reset-in-response", "ignore SIGPIPE", "A send may raise SIGPIPE.",
        (SEND_C, "0"),
    ),
    (
        "WaitsWithoutEnd", "event", "c", "silence", "no code looks at the time",
        "Silent clients have no time limit.",
        (LOOKS_AT_TIME_C, "        (void)now;\n        if ((stopping"),
    ),
    (
        "WaitsWithoutEnd", "event", "go", "silence", "no code looks at the time",
        "Silent clients have no time limit.",
        (LOOKS_AT_TIME_GO, "\t\t_ = silence\n\t\tif (loop.stopping"),
    ),
    (
        "StaysReady", "event", "c", "pause", "calls it again at once",
        "The loop watches the listening socket while no descriptor is free.",
        (STOP_WATCHING_C, "            (void)0; /*"),
    ),
    (
        "StaysReady", "event", "go", "pause", "calls it again at once",
        "The loop watches the listening socket while no descriptor is free.",
        (STOP_WATCHING_GO, ""),
    ),
    (
        "AlwaysWritable", "event", "c", "idle-cpu", "busy waiting",
        "Each client is watched for EPOLLOUT, too, with nothing to send.",
        ("client->response.data ? EPOLLOUT : EPOLLIN;", "EPOLLIN | EPOLLOUT;"),
    ),
    (
        "AlwaysWritable", "event", "go", "idle-cpu", "busy waiting",
        "Each client is watched for EPOLLOUT, too, with nothing to send.",
        ("\t\tevent.Events = syscall.EPOLLOUT\n\t}\n",
         "\t\tevent.Events = syscall.EPOLLOUT\n"
         "\t} else if descriptor != loop.listener && descriptor != loop.wake {\n"
         "\t\tevent.Events |= syscall.EPOLLOUT\n\t}\n"),
    ),
    (
        "ForgetsFirstPiece", "event", "c", "byte-by-byte", "one recv()",
        "Each recv() overwrites the bytes before.",
        ("recv(client->connection, client->buffer + client->used, sizeof client->buffer - client->used, 0)",
         "recv(client->connection, client->buffer, sizeof client->buffer, 0)"),
        ("            client->used += (size_t)count;\n    }", "            client->used = (size_t)count;\n"
         "    }"),
    ),
    (
        "SharesTheSlice", "event", "go", "byte-by-byte", "one recv()",
        "The first bytes of each client are a slice of one buffer.",
        ("\t\tclient.buffer = append(client.buffer, received[:count]...)\n",
         "\t\tif len(client.buffer) == 0 {\n\t\t\tclient.buffer = received[:count]\n\t\t} else {\n"
         "\t\t\tclient.buffer = append(client.buffer, received[:count]...)\n\t\t}\n"),
    ),
    (
        "EdgeTriggered", "event", "c", "bursts", "accept until",
        "The listening socket is watched with EPOLLET, and one connection accepted.",
        ("{.events = EPOLLIN, .data.ptr = NULL}", "{.events = EPOLLIN | EPOLLET, .data.ptr = NULL}"),
    ),
]  # fmt: skip

ENTRIES = [*SERIAL, *FORK, *THREAD, *POOL, *EVENT]
