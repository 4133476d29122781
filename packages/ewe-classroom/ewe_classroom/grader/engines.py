"""Checks of a persistent engine. It runs all scripts in one process; no script may notice an earlier one.

Each check has the same three steps. A script reports the state of its process, another script changes that state,
and the first script reports again. CGI promises each script a separate process (RFC 3875). A persistent engine has
to keep this promise by cleaning up. The checks cover, one by one, the state that must be fresh for each script:

    environment · directory · arguments, variables, modules · standard streams and their buffers · umask
    signals, alarms · descriptors · threads and children · and the engine itself, which no script may end

docs/xswitch-internals.md has the protocol. engine_xswitch.py runs the engine behind a real X-Switch.
"""

from __future__ import annotations

import os

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.engine_scene import EngineScene, short_text

HEADER_SCRIPT = 'print("Content-Type: text/plain\\n")\n'
ECHO = (
    "import os, sys\n"
    'out = ["Content-Type: text/plain", "", *sys.argv[1:]]\n'
    'out += [os.environ.get("CHECK_VALUE", ""), os.getcwd(), "", ""]\n'
    'sys.stdout.write("\\n".join(out))\n'
    "sys.stdout.flush()\n"
    "sys.stdout.buffer.write(sys.stdin.buffer.read())\n"
)
LARGE_BYTES = 1_000_000


@check(
    "engine-answers",
    proves="a script's output, arguments, variables and body pass through the engine unchanged",
    sends=(
        "scripts with tabs and percent signs in their arguments, a body with all byte values, and 1,000,000 bytes "
        "of output"
    ),
    expects="the same bytes, and then the end mark with status 0",
    why="All other checks depend on this one.",
    hint="Decode %25, %09 and %0A in each word. Flush standard output before you write the end mark.",
    kind="engine",
)
def answers(scene: EngineScene) -> None:
    scene.expect(
        "hello.py",
        HEADER_SCRIPT + 'print("hello")\n',
        "hello\n",
        because="the script is not run, or not flushed",
    )
    # Each character that the protocol percent-encodes, and text that looks percent-encoded ("%25").
    # ECHO prints each argument, the variable CHECK_VALUE, the present directory, and then the body.
    words = ["one", "two words", "tab\there", "50%25", "über", ""]
    value = "a\nb%0A c\t="
    body = bytes(range(256)) * 300
    expected = "\n".join([*words, value, str(scene.subject.site.root), "", ""]).encode() + body
    scene.expect(
        "echo.py", ECHO, expected,
        because="the words of the two lines are decoded wrong, or the body is not read exactly",
        arguments=words, environment={"CHECK_VALUE": value}, body=body,
    )  # fmt: skip
    text = HEADER_SCRIPT + f'print("x" * {LARGE_BYTES}, end="")\n'
    scene.expect(
        "big.py",
        text,
        "x" * LARGE_BYTES,
        because="the end mark precedes a part of the output: write all output first",
    )
    scene.confirm(
        f"arguments, a value with a line feed, {len(body):,} bytes of body and {LARGE_BYTES:,} bytes of "
        f"output were unchanged"
    )


@check(
    "engine-persistent",
    proves="one process runs one script after another",
    sends="a script that prints its process id, four times, with another script in between",
    expects="the same number each time",
    why="Starting an interpreter costs 10 ms or more. An engine that starts one for each request is CGI.",
    hint="Run the script in the engine's process, with compile() and exec(). Do not fork, and start no program.",
    kind="engine",
)
def persistent(scene: EngineScene) -> None:
    pids = []
    for name in ("probe.py", "probe.py", "other.py", "probe.py"):
        pids.append(scene.probe(name=name)["pid"])
    if len(set(pids)) > 1:
        scene.fail(
            f"four requests ran in the processes {', '.join(map(str, pids))}",
            "run all of them in one process",
            "the engine forks for each request, starts a program, or ends after a request",
        )
    scene.confirm("four requests ran in one process")


@check(
    "engine-environment",
    proves="a script sees the environment variables of its request, and no others",
    sends=(
        "two scripts that print their environment and that of a program they start; between them a script that "
        "sets and deletes variables"
    ),
    expects="exactly the variables of the second line, in os.environ and in started programs",
    why=(
        "If a script sees HTTP_COOKIE or REMOTE_USER of the previous visitor, it serves a stranger "
        "as that visitor."
    ),
    hint="Call os.environ.clear(), then update(). Started programs would not see a new dictionary (putenv).",
    kind="engine",
)
def environment(scene: EngineScene) -> None:
    expected = {"PATH", "CONTENT_LENGTH", "SCRIPT_NAME", "CHECK_VALUE"}
    changes = (
        HEADER_SCRIPT + 'import os\nos.environ["LEFT_BEHIND"] = "1"\ndel os.environ["PATH"]\nprint("done")\n'
    )
    cookie = {"HTTP_COOKIE": "session=alice"}
    for after in ("the start", "a script that set LEFT_BEHIND and got HTTP_COOKIE"):
        found = scene.probe(after=after)
        for where, names in (
            ("os.environ", set(found["environment"])),
            ("a program that it starts", {line.partition("=")[0] for line in found["inherited"]}),
        ):
            # LC_CTYPE: Python itself sets it in some programs that it starts.
            strange, missing = sorted(names - expected - {"LC_CTYPE"}), sorted(expected - names)
            if strange or missing:
                what = f"{strange[0]}, which is not in its request" if strange else f"no {missing[0]}"
                scene.fail(
                    f"after {after}, a script found {what}, in {where}",
                    f"give it the variables of its request: {', '.join(sorted(expected))}",
                    "the environment of the previous request, or of the engine, is still there",
                )
        if after == "the start":
            scene.expect("sets.py", changes, "done\n", because="an ordinary script fails", environment=cookie)
    scene.confirm("two scripts and the programs that they started saw the four variables of their request")


@check(
    "engine-directory",
    proves="a script runs in its own directory",
    sends="a script that changes to / between two others, and a script in another directory",
    expects="the directory of the script, each time",
    why="open('data.txt') in a script must open the file beside the script (RFC 3875 section 7.2).",
    hint="os.chdir() to the directory of the file before each script.",
    kind="engine",
)
def directory(scene: EngineScene) -> None:
    root = str(scene.subject.site.root)
    because = "the directory is not set for each request"
    scene.expect_same("directory", root, after="the start", because=because)
    scene.expect(
        "leaves.py", HEADER_SCRIPT + 'import os\nos.chdir("/")\nprint("done")\n', "done\n", because=because
    )
    scene.expect_same("directory", root, after="a script that changed to /", because=because)
    found = scene.probe(after="a script in another directory", name="deeper/probe.py")["directory"]
    if found != f"{root}/deeper":
        scene.fail(f"deeper/probe.py ran in {found}", f"run it in {root}/deeper", because)
    scene.confirm("three scripts each ran in their own directory")


@check(
    "engine-globals",
    proves="a script starts with fresh variables",
    sends=(
        "a counter, three times; a script that changes builtins, sys.argv and sys.path; then one "
        "that prints them"
    ),
    expects="1 each time; the name __main__; no change of the earlier script",
    why="A variable that survives shows one visitor's data to another visitor.",
    hint="Run each script in a new module: exec(code, vars(types.ModuleType('__main__'))). Restore builtins.",
    kind="engine",
)
def variables(scene: EngineScene) -> None:
    count = HEADER_SCRIPT + 'counter = globals().get("counter", 0) + 1\nprint(counter)\n'
    for _ in range(3):
        scene.expect("count.py", count, "1\n", because="the variables of the earlier script are still there")
    first = scene.probe()
    if first["name"] != "__main__":
        scene.fail(
            f"a script found __name__ {first['name']!r}",
            "give it '__main__': many scripts test __name__",
            "the script runs as an imported module",
        )
    text = (
        HEADER_SCRIPT
        + "import builtins, sys\nbuiltins.leaked = 1\nbuiltins.len = None\nsys.argv.append('x')\n"
        "sys.path.insert(0, '/nowhere')\nprint('done')\n"
    )
    after = "a script that changed builtins, sys.argv and sys.path"
    scene.expect(
        "changes.py",
        text,
        "done\n",
        because="the engine itself uses the changed builtins: put builtins back first",
    )
    for key in ("globals", "builtins", "arguments", "path", "file"):
        scene.expect_same(
            key, first[key], after=after, because=f"{key} of the earlier script are still there"
        )
    scene.confirm("a counter began at 0 three times, and builtins, sys.argv and sys.path were restored")


@check(
    "engine-modules",
    proves="a module beside a script comes from the disk, with fresh variables",
    sends="a script with a counting module; the same after an edit of the module; a module of this name elsewhere",
    expects="fresh variables in the module; the edited text; the other directory's module",
    why="Students edit a module and reload the page. Two shops on one server may both have a module named config.",
    hint="Delete the modules of the script's directory from sys.modules, and call importlib.invalidate_caches().",
    kind="engine",
)
def modules(scene: EngineScene) -> None:
    text = HEADER_SCRIPT + "import helper\nhelper.count += 1\nprint(helper.NAME, helper.count)\n"
    module = "NAME = '{}'\ncount = 0\n"
    # The directory of the script and its module, the name in the module, and the likely cause of another output.
    cases = [
        ("", "one", "the module is not found, or keeps its variables"),
        ("", "one", "the module keeps the variables of the earlier script: it stays in sys.modules"),
        (
            "",
            "two",
            "the module is not loaded again after an edit: it stays in sys.modules, or a compiled copy is used",
        ),
        ("deeper/", "six", "the engine uses the module of the same name in another directory"),
    ]
    for directory, name, because in cases:
        scene.write(f"{directory}helper.py", module.format(name))
        scene.expect(f"{directory}uses.py", text, f"{name} 1\n", because=because)
    scene.confirm("a module was fresh in each of four requests, also after an edit and in another directory")


@check(
    "engine-output",
    proves="the whole output of a script is in its own answer, and in no other",
    sends="scripts that leave text in a buffer, replace or close sys.stdout, and fail in the middle",
    expects="each text in the right answer, before the end mark",
    why="A line in the wrong answer is one visitor's data on another visitor's page.",
    hint=(
        "For each request, make new objects for sys.stdin and sys.stdout on descriptors 0 and 1. Flush before you "
        "write the end mark."
    ),
    kind="engine",
)
def output(scene: EngineScene) -> None:
    plain = HEADER_SCRIPT + 'print("plain")\n'
    cases = [
        ("buffered.py", HEADER_SCRIPT + 'import sys\nsys.stdout.write("no line feed")\n', "no line feed",
         "the buffer is not flushed before the end mark"),
        ("replaces.py",
         HEADER_SCRIPT + 'import io, sys\nprint("mine")\nsys.stdout = io.StringIO()\nprint("lost")\n', "mine\n",
         "only sys.stdout is flushed, which the script has replaced"),
        ("closes.py", HEADER_SCRIPT + 'import sys\nprint("mine")\nsys.stdout.close()\n', "mine\n",
         "the script has closed sys.stdout"),
        ("descriptor.py", HEADER_SCRIPT + 'import os, sys\nprint("mine", flush=True)\nos.close(1)\n', "mine\n",
         "the script has closed descriptor 1"),
    ]  # fmt: skip
    for name, text, expected, because in cases:
        scene.expect(name, text, expected, because=because)
        scene.expect(
            "plain.py",
            plain,
            "plain\n",
            because=f"the change that {name} made to its standard output affects the next script",
        )
    scene.expect(
        "fails.py", HEADER_SCRIPT + 'print("begun")\nraise ValueError("on purpose")\n', "begun\n",
        because="the output before an error belongs to the answer", status=1,
    )  # fmt: skip
    scene.expect(
        "plain.py", plain, "plain\n", because="the output of fails.py is in the next script's answer"
    )
    scene.confirm(f"{len(cases) + 1} scripts misused sys.stdout, and each text was in the right answer")


@check(
    "engine-input",
    proves="a script reads its body up to an end of file, and leaves no byte to the next script",
    sends=(
        "bodies that a script ignores or reads in part; a body of 1,000,000 bytes; a script that closes "
        "sys.stdin"
    ),
    expects="each script reads exactly its own body",
    why="If the rest of one form precedes the next form, a script gets a request that no visitor has sent.",
    hint="First read CONTENT_LENGTH bytes from the data socket into a file. Make this file descriptor 0.",
    kind="engine",
)
def standard_input(scene: EngineScene) -> None:
    reads = (
        HEADER_SCRIPT + "import sys\nsys.stdout.flush()\nsys.stdout.buffer.write(sys.stdin.buffer.read())\n"
    )
    cases = [
        ("ignores.py", HEADER_SCRIPT + 'print("done")\n', b"left over " * 50_000, "done\n"),
        ("half.py", HEADER_SCRIPT + "import sys\nprint(sys.stdin.read(4))\n", b"fourteen bytes", "four\n"),
        (
            "closes.py",
            HEADER_SCRIPT + 'import os, sys\nsys.stdin.close()\nos.close(0)\nprint("done")\n',
            b"x",
            "done\n",
        ),
    ]
    for name, text, body, expected in cases:
        scene.expect(
            name, text, expected, because="the script does not get its body on standard input", body=body
        )
        scene.expect(
            "reads.py",
            reads,
            b"mine",
            because=f"the part of its body that {name} did not read reaches the next script",
            body=b"mine",
        )
        scene.expect(
            "reads.py", reads, b"", because="without a body, standard input must be at its end immediately"
        )
    body = os.urandom(LARGE_BYTES)
    scene.expect(
        "reads.py",
        reads,
        body,
        because="one read() of a socket may return only a part of the body",
        body=body,
    )
    scene.confirm(f"each script read its body to the end, up to {LARGE_BYTES:,} bytes")


@check(
    "engine-umask",
    proves="a script starts with the umask 022",
    sends="a script that sets umask 0 between two others",
    expects="0o22 each time",
    why="With another script's umask, a script may write files that every account may change.",
    hint="Call os.umask(0o022) before each script.",
    kind="engine",
)
def umask(scene: EngineScene) -> None:
    because = "the umask of the process stays as the earlier script has set it"
    scene.expect_same("umask", "0o22", after="the start", because=because)
    scene.expect(
        "opens.py", HEADER_SCRIPT + 'import os\nos.umask(0)\nprint("done")\n', "done\n", because=because
    )
    scene.expect_same("umask", "0o22", after="a script that set umask 0", because=because)
    scene.confirm("the umask was 0o22 before and after a script that changed it")


@check(
    "engine-signals",
    proves="handlers, blocked signals and alarms of a script end with the script",
    sends=(
        "a script that handles SIGTERM, ignores SIGINT, blocks SIGUSR1 and sets an alarm; then one "
        "that prints these"
    ),
    expects="the same state as at the start",
    why="An alarm of one script would end the next script in the middle of its answer.",
    hint=(
        "Store signal.getsignal() of every signal before the first script. Afterwards restore the changed "
        "handlers, and call setitimer(ITIMER_REAL, 0)."
    ),
    kind="engine",
)
def signals(scene: EngineScene) -> None:
    first = scene.probe()
    text = (
        HEADER_SCRIPT + "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.alarm(1000)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\nprint('done')\n"
    )
    scene.expect("signals.py", text, "done\n", because="an ordinary script fails")
    for key in ("handled", "ignored", "blocked", "alarm"):
        scene.expect_same(
            key,
            first[key],
            after="a script that changed signals",
            because="signals stay as the script has set them",
        )
    scene.confirm("a script left no handler, no blocked signal and no alarm")


@check(
    "engine-descriptors",
    proves="the engine closes files that a script leaves open, and keeps the control socket from started programs",
    sends="a script that opens ten files and does not close them, three times; a script that starts a program",
    expects="as many descriptors as at the start; only descriptors 0, 1 and 2 in the program",
    why=(
        "An engine runs for days: with 256 open files it can open no more. A program with descriptor 3 can write "
        "end marks."
    ),
    hint=(
        "Call gc.collect(), then close every descriptor in /proc/self/fd that is new. Call os.set_inheritable(3, "
        "False)."
    ),
    kind="engine",
)
def descriptors(scene: EngineScene) -> None:
    first = scene.probe()["descriptors"]
    text = (
        HEADER_SCRIPT
        + "import os\nfor _ in range(10):\n    os.open('/dev/null', os.O_RDONLY)\nprint('done')\n"
    )
    for _ in range(3):
        scene.expect("opens.py", text, "done\n", because="an ordinary script fails")
    scene.expect_same(
        "descriptors", first, after="a script that left ten files open", because="files of a script stay open"
    )
    text = (
        HEADER_SCRIPT + "import subprocess\nls = subprocess.run(['ls', '/proc/self/fd'], close_fds=False, "
        "capture_output=True, text=True)\nprint(*ls.stdout.split())\n"
    )
    body = scene.run("starts.py", text).output.partition(b"\n\n")[2]
    numbers = body.decode(errors="replace").split()
    # ls itself has a fourth descriptor: the directory that it lists.
    if len(numbers) != 4 or numbers[:3] != ["0", "1", "2"]:
        scene.fail(
            f"a program that a script started has the descriptors {' '.join(numbers)} (one is its own directory)",
            "let it inherit 0, 1 and 2 only",
            "descriptor 3, or the engine's copy of a socket, is inherited",
        )
    scene.confirm("the engine closed thirty files, and a program got three descriptors")


@check(
    "engine-errors",
    proves="a failing script gives a status and a traceback, and the engine survives",
    sends=(
        "scripts that raise, do not compile, call sys.exit() in four ways, and do not exist; an ordinary script "
        "after each"
    ),
    expects="the exit status of a new process; the reason on descriptor 2; then an ordinary answer",
    why="One student's typing error must not stop the scripts of all.",
    hint="Catch SystemExit for sys.exit(). Catch BaseException for all else, and call traceback.print_exc().",
    kind="engine",
)
def errors(scene: EngineScene) -> None:
    plain = HEADER_SCRIPT + 'print("plain")\n'
    # The name of the script, its text, the status of a process that runs it, and a part of its standard error.
    cases: list[tuple[str, str | None, int, bytes]] = [
        ("raises.py", 'raise ValueError("on purpose")\n', 1, b"on purpose"),
        ("syntax.py", "def (:\n", 1, b"SyntaxError"),
        ("exit3.py", "import sys\nsys.exit(3)\n", 3, b""),
        ("exit0.py", "import sys\nsys.exit()\n", 0, b""),
        ("exitbig.py", "import sys\nsys.exit(256 + 7)\n", 7, b""),
        ("exittext.py", 'import sys\nsys.exit("a reason")\n', 1, b"a reason"),
        ("interrupt.py", "raise KeyboardInterrupt\n", 1, b"KeyboardInterrupt"),
        ("absent.py", None, 1, b"absent.py"),
    ]
    for name, text, status, words in cases:
        answer = scene.run(name, text)
        if answer.status is None:
            scene.fail(
                f"the engine ended with {name}{scene.errors_text(answer)}",
                f"write the end mark with status {status}, and live on",
                "an exception of the script ends the engine",
            )
        if answer.status != status:
            scene.fail(
                f"the end mark of {name} has status {answer.status}",
                f"give {status}, the exit status of a process",
            )
        if words not in answer.errors:
            scene.fail(
                f"{name} left {short_text(answer.errors)} on descriptor 2",
                f"write the reason there: {words.decode()}",
                "the error is swallowed: the author of the script learns nothing",
            )
        scene.expect("plain.py", plain, "plain\n", because=f"{name} has broken the engine")
    scene.confirm(f"{len(cases)} scripts ended in {len(cases)} ways, and the engine went on")


@check(
    "engine-leftovers",
    proves="threads and children of a script do not run on beside the next script",
    sends=(
        "a script that forks, and both processes reach its end; a script that leaves a running thread; an ordinary "
        "script after each"
    ),
    expects="one end mark for each request; after the thread, the engine ends instead of writing an end mark",
    why="A forked copy of the engine that reads the control socket would answer requests of others.",
    hint=(
        "After the script: if os.getpid() has changed, flush and call os._exit(). If /proc/self/task has more than "
        "one entry, call os._exit()."
    ),
    kind="engine",
)
def leftovers(scene: EngineScene) -> None:
    plain = HEADER_SCRIPT + 'print("plain")\n'
    forks = (
        HEADER_SCRIPT
        + "import os, sys\nsys.stdout.flush()\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n"
        '    print("parent")\nelse:\n    print("child")\n'
    )
    scene.expect(
        "forks.py", forks, "child\nparent\n", because="the child of a script goes on as a second engine"
    )
    scene.expect("plain.py", plain, "plain\n", because="the child of a script goes on as a second engine")
    # The thread needs no name of the script: an engine that clears the script's names would end it by a NameError.
    threads = (
        HEADER_SCRIPT
        + "import threading, time\ndef wait(sleep=time.sleep):\n    while True:\n        sleep(0.05)\n"
        'threading.Thread(target=wait, daemon=True).start()\nprint("done")\n'
    )
    answer = scene.run("threads.py", threads)
    engine = scene.subject.engine
    has_end_mark = answer.status is not None
    if has_end_mark and len(processes.thread_ids(engine.pid)) > 1:
        scene.fail(
            "the engine wrote its end mark while a thread of the script runs on",
            "end without an end mark if a script has left a thread: X-Switch starts another engine",
            "a thread of Python ends only by itself, or with its process",
        )
    if not answer.output.endswith(b"done\n"):
        scene.fail(
            f"the answer was {short_text(answer.output)}", "flush the script's output before the engine ends"
        )
    scene.expect(
        "plain.py",
        plain,
        "plain\n",
        because="the engine does not start again, or a lock of the old one is left",
    )
    scene.confirm(
        "a child of a script ended with its script, and a new engine replaced the one with a thread left in it"
    )


@check(
    "engine-ends",
    proves="an engine ends when X-Switch closes its sockets, also in the middle of a body",
    sends="half of a body, then the end of both sockets; and the end of both sockets between two requests",
    expects="the process ends by itself",
    why="Engines that do not notice the end accumulate: one process for each engine that X-Switch has given up.",
    hint="If readline() or read() returns b'', X-Switch has closed the socket.",
    kind="engine",
)
def ends(scene: EngineScene) -> None:
    for what in ("between two requests", "in the middle of a body"):
        scene.probe()  # starts an engine if none runs, and waits until it has run a script
        engine = scene.subject.engine
        if what != "between two requests":  # begin a request by hand: ask() would wait for its answer
            path = os.fsencode(scene.write("reads.py", HEADER_SCRIPT))
            engine.control.sendall(path + b"\nCONTENT_LENGTH=1000\n")
            engine.data.sendall(b"half of it")
        engine.control.close()
        engine.data.close()
        scene.note(do="note", text=f"both sockets are closed {what}")
        if not wait_for_end(scene):
            scene.fail(
                f"X-Switch has closed both sockets {what}, and the engine goes on",
                "end the process",
                "the engine takes an empty read for a request without words, or a copy of the socket is still open",
            )
        scene.subject.end()
    scene.confirm("the engine ended both times when its sockets were closed")


def wait_for_end(scene: EngineScene) -> bool:
    """Wait until the engine has ended or is quiescent; return whether it has ended."""
    engine = scene.subject.engine
    # A zombie has ended, although no process has called waitpid() for it.
    scene.until(lambda: scene.subject.has_ended() or processes.state(engine.pid) == "Z", "the engine ends")
    return bool(scene.subject.has_ended())
