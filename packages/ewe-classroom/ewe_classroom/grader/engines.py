"""Checks of a persistent engine: it runs script after script in one process, and none may notice the one before.

Each check has the same three acts: a script finds out what it sees, another changes something in the process, and
the first one looks again. CGI promises each script a process to itself (RFC 3875); a persistent engine has to keep
that promise by cleaning up. What must be new is a list, and the checks go through it:

    environment · directory · arguments, variables, modules · standard streams and their buffers · umask
    signals, alarms · descriptors · threads and children · and the engine itself, which a script may not end

docs/write-an-engine.md has the protocol. engine_xswitch.py runs the engine behind a real X-Switch.
"""

from __future__ import annotations

import os

from ewe_classroom.grader import processes
from ewe_classroom.grader.check import check
from ewe_classroom.grader.engine_scene import EngineScene, short

PRINTS = 'print("Content-Type: text/plain\\n")\n'
ECHO = (
    "import os, sys\n"
    'out = ["Content-Type: text/plain", "", *sys.argv[1:]]\n'
    'out += [os.environ.get("CHECK_VALUE", ""), os.getcwd(), "", ""]\n'
    'sys.stdout.write("\\n".join(out))\n'
    "sys.stdout.flush()\n"
    "sys.stdout.buffer.write(sys.stdin.buffer.read())\n"
)
BIG = 1_000_000


@check(
    "engine-answers",
    proves="a script's output, arguments, variables and body pass through the engine unchanged",
    sends=(
        "scripts with arguments that hold tabs and percent signs, a body of all bytes, and 1,000,000 bytes of "
        "output"
    ),
    expects="the same bytes, and then the mark with status 0",
    why="All other checks rest on this one.",
    hint="Decode %25, %09 and %0A in each word. Flush standard output before you write the mark.",
    subject="engine",
)
def answers(scene: EngineScene) -> None:
    scene.expect("hello.py", PRINTS + 'print("hello")\n', "hello\n", "the script is not run, or not flushed")
    words = ["one", "two words", "tab\there", "50%25", "über", ""]
    value = "a\nb%0A c\t="
    body = bytes(range(256)) * 300
    wanted = "\n".join([*words, value, str(scene.subject.site.root), "", ""]).encode() + body
    scene.expect(
        "echo.py", ECHO, wanted, "the words of the two lines are decoded wrong, or the body is not read exactly",
        arguments=words, environment={"CHECK_VALUE": value}, body=body,
    )  # fmt: skip
    text = PRINTS + f'print("x" * {BIG}, end="")\n'
    scene.expect("big.py", text, "x" * BIG, "the mark overtakes the output: write all of it first")
    scene.confirm(
        f"arguments, a value with a line feed, {len(body):,} bytes in and {BIG:,} bytes out came through"
    )


@check(
    "engine-persistent",
    proves="one process runs script after script",
    sends="a script that prints its process number, four times, with another script in between",
    expects="the same number each time",
    why="Starting an interpreter costs 10 ms or more. An engine that starts one for each request is CGI.",
    hint="Run the script in the engine's process: compile() and exec(). Do not fork, and start no program.",
    subject="engine",
)
def persistent(scene: EngineScene) -> None:
    numbers = []
    for name in ("probe.py", "probe.py", "other.py", "probe.py"):
        numbers.append(scene.probe(name=name)["pid"])
    if len(set(numbers)) > 1:
        scene.fail(
            f"four requests ran in the processes {', '.join(map(str, numbers))}",
            "run them all in one process",
            "the engine forks for each request, starts a program, or ends after a request",
        )
    scene.confirm("four requests ran in one process")


@check(
    "engine-environment",
    proves="a script sees the variables of its request, and no others",
    sends=(
        "a script that sets and deletes variables, between two others; one looks through a program that it "
        "starts"
    ),
    expects="exactly the variables of the second line, in os.environ and in programs",
    why="HTTP_COOKIE or REMOTE_USER of one visitor in the next visitor's script is a stranger logged in.",
    hint="os.environ.clear(), then update(). A new dictionary in its place would not reach programs (putenv).",
    subject="engine",
)
def environment(scene: EngineScene) -> None:
    expected = {"PATH", "CONTENT_LENGTH", "SCRIPT_NAME", "CHECK_VALUE"}
    text = PRINTS + 'import os\nos.environ["LEFT_BEHIND"] = "1"\ndel os.environ["PATH"]\nprint("done")\n'
    cookie = {"HTTP_COOKIE": "session=alice"}
    for after in ("the start", "a script that set LEFT_BEHIND and got HTTP_COOKIE"):
        found = scene.probe(after)
        for place, names in (
            ("os.environ", set(found["environment"])),
            ("a program that it starts", {line.partition("=")[0] for line in found["inherited"]}),
        ):
            # LC_CTYPE: Python itself sets it in some programs that it starts.
            strange, missing = sorted(names - expected - {"LC_CTYPE"}), sorted(expected - names)
            if strange or missing:
                what = f"{strange[0]}, which is not in its request" if strange else f"no {missing[0]}"
                scene.fail(
                    f"after {after}, a script found {what}, in {place}",
                    f"give it the variables of its request: {', '.join(sorted(expected))}",
                    "the environment of the request before, or of the engine, is still there",
                )
        if after == "the start":
            scene.expect("sets.py", text, "done\n", "an ordinary script fails", environment=cookie)
    scene.confirm(
        "two scripts saw the four variables of their request, and so did the programs that they started"
    )


@check(
    "engine-directory",
    proves="a script runs in its directory",
    sends="a script that goes to / between two others, and one in another directory",
    expects="the directory of the script, each time",
    why="open('data.txt') in a script means the file beside it (RFC 3875 section 7.2).",
    hint="os.chdir() to the directory of the file before each script.",
    subject="engine",
)
def directory(scene: EngineScene) -> None:
    root = str(scene.subject.site.root)
    because = "the directory is not set for each request"
    scene.expect_same("directory", root, "the start", because)
    scene.expect("leaves.py", PRINTS + 'import os\nos.chdir("/")\nprint("done")\n', "done\n", because)
    scene.expect_same("directory", root, "a script that went to /", because)
    found = scene.probe("a script in another directory", "deeper/probe.py")["directory"]
    if found != f"{root}/deeper":
        scene.fail(f"deeper/probe.py ran in {found}", f"run it in {root}/deeper", because)
    scene.confirm("three scripts ran each in its directory")


@check(
    "engine-globals",
    proves="a script starts with fresh variables",
    sends="a counter, three times; a script that changes builtins, sys.argv and sys.path; then one that looks",
    expects="1 each time; the name __main__; nothing of the script before",
    why="A variable that survives is another visitor's data.",
    hint="Run each script in a new module: exec(code, vars(types.ModuleType('__main__'))). Put builtins back.",
    subject="engine",
)
def variables(scene: EngineScene) -> None:
    count = PRINTS + 'counter = globals().get("counter", 0) + 1\nprint(counter)\n'
    for _ in range(3):
        scene.expect("count.py", count, "1\n", "the variables of the script before are still there")
    first = scene.probe()
    if first["name"] != "__main__":
        scene.fail(
            f"a script found __name__ {first['name']!r}",
            "give it '__main__': scripts ask for it",
            "the script runs as a module",
        )
    text = (
        PRINTS + "import builtins, sys\nbuiltins.leaked = 1\nbuiltins.len = None\nsys.argv.append('x')\n"
        "sys.path.insert(0, '/nowhere')\nprint('done')\n"
    )
    after = "a script that changed builtins, sys.argv and sys.path"
    scene.expect(
        "changes.py",
        text,
        "done\n",
        "the script's change of builtins reaches the engine: put builtins back first",
    )
    for key in ("globals", "builtins", "arguments", "path", "file"):
        scene.expect_same(key, first[key], after, f"{key} of the script before are still there")
    scene.confirm("a counter began at 0 three times, and builtins, sys.argv and sys.path were put back")


@check(
    "engine-modules",
    proves="a module beside a script is the one on the disk, and starts fresh",
    sends="a script with a module that counts; the module is then edited; then the same name in another directory",
    expects="fresh variables in the module; the edited text; the other directory's module",
    why="Students edit a module and reload the page. Two shops on one server both have a module named config.",
    hint="Forget what a script imported from its directory: delete it from sys.modules, and invalidate_caches().",
    subject="engine",
)
def modules(scene: EngineScene) -> None:
    text = PRINTS + "import helper\nhelper.count += 1\nprint(helper.NAME, helper.count)\n"
    module = "NAME = '{}'\ncount = 0\n"
    cases = [
        ("", "one", "the module is not found, or keeps its variables"),
        ("", "one", "the module keeps the variables of the script before: it stays in sys.modules"),
        (
            "",
            "two",
            "the module is not loaded again after an edit: it stays in sys.modules, or as a compiled copy",
        ),
        ("deeper/", "six", "a module of the same name in another directory is taken for it"),
    ]
    for place, name, because in cases:
        scene.write(f"{place}helper.py", module.format(name))
        scene.expect(f"{place}uses.py", text, f"{name} 1\n", because)
    scene.confirm("a module was fresh in each of four requests, after an edit and in another directory, too")


@check(
    "engine-output",
    proves="all that a script writes is in its answer, and nothing in the next one",
    sends="scripts that leave text in a buffer, replace or close sys.stdout, and fail in the middle",
    expects="each text in the answer that it belongs to, before the mark",
    why="A line in the wrong answer is one visitor's data on another visitor's page.",
    hint=(
        "Make new objects for sys.stdin and sys.stdout for each request, on descriptors 0 and 1. Flush before "
        "the mark."
    ),
    subject="engine",
)
def output(scene: EngineScene) -> None:
    plain = PRINTS + 'print("plain")\n'
    cases = [
        ("buffered.py", PRINTS + 'import sys\nsys.stdout.write("no line feed")\n', "no line feed",
         "the buffer is not flushed before the mark"),
        ("replaces.py",
         PRINTS + 'import io, sys\nprint("mine")\nsys.stdout = io.StringIO()\nprint("lost")\n', "mine\n",
         "only sys.stdout is flushed, which the script has replaced"),
        ("closes.py", PRINTS + 'import sys\nprint("mine")\nsys.stdout.close()\n', "mine\n",
         "the script has closed sys.stdout"),
        ("descriptor.py", PRINTS + 'import os, sys\nprint("mine", flush=True)\nos.close(1)\n', "mine\n",
         "the script has closed descriptor 1"),
    ]  # fmt: skip
    for name, text, wanted, because in cases:
        scene.expect(name, text, wanted, because)
        scene.expect(
            "plain.py", plain, "plain\n", f"what {name} did to its standard output reaches the next script"
        )
    scene.expect(
        "fails.py", PRINTS + 'print("begun")\nraise ValueError("on purpose")\n', "begun\n",
        "what was written before an error belongs to the answer", status=1,
    )  # fmt: skip
    scene.expect("plain.py", plain, "plain\n", "what fails.py wrote reaches the next script")
    scene.confirm(
        f"{len(cases) + 1} scripts did their worst to sys.stdout, and each text was where it belongs"
    )


@check(
    "engine-input",
    proves="a script reads its body to an end of file, and leaves nothing to the next one",
    sends=(
        "bodies that a script does not read, reads in part, and of 1,000,000 bytes; a script that closes "
        "sys.stdin"
    ),
    expects="each script reads its body, all of it and nothing else",
    why="The rest of one form in front of the next one is a request that nobody has sent.",
    hint="Read CONTENT_LENGTH bytes from the data socket first, into a file; make that file descriptor 0.",
    subject="engine",
)
def standard_input(scene: EngineScene) -> None:
    reads = PRINTS + "import sys\nsys.stdout.flush()\nsys.stdout.buffer.write(sys.stdin.buffer.read())\n"
    cases = [
        ("ignores.py", PRINTS + 'print("done")\n', b"left over " * 50_000, "done\n"),
        ("half.py", PRINTS + "import sys\nprint(sys.stdin.read(4))\n", b"fourteen bytes", "four\n"),
        (
            "closes.py",
            PRINTS + 'import os, sys\nsys.stdin.close()\nos.close(0)\nprint("done")\n',
            b"x",
            "done\n",
        ),
    ]
    for name, text, body, wanted in cases:
        scene.expect(name, text, wanted, "the script does not get its body on standard input", body=body)
        scene.expect(
            "reads.py", reads, b"mine", f"what {name} left of its body reaches the next script", body=b"mine"
        )
        scene.expect("reads.py", reads, b"", "without a body, standard input is at its end at once")
    body = os.urandom(BIG)
    scene.expect("reads.py", reads, body, "one read() of a socket returns what is there, not all", body=body)
    scene.confirm(f"each script read its body to the end, {BIG:,} bytes at most")


@check(
    "engine-umask",
    proves="a script starts with the umask 022",
    sends="a script that sets umask 0 between two others",
    expects="0o22 each time",
    why="With a stranger's umask a script writes files that every account may change.",
    hint="os.umask(0o022) before each script.",
    subject="engine",
)
def umask(scene: EngineScene) -> None:
    because = "the umask of the process stays as the script before has set it"
    scene.expect_same("umask", "0o22", "the start", because)
    scene.expect("opens.py", PRINTS + 'import os\nos.umask(0)\nprint("done")\n', "done\n", because)
    scene.expect_same("umask", "0o22", "a script that set umask 0", because)
    scene.confirm("0o22 before and after a script that set another")


@check(
    "engine-signals",
    proves="handlers, blocked signals and alarms of a script end with it",
    sends="a script that handles SIGTERM, ignores SIGINT, blocks SIGUSR1 and sets an alarm; then one that looks",
    expects="as at the start",
    why="An alarm of the script before ends the next one in the middle of its answer.",
    hint=(
        "signal.getsignal() of every signal before the first script; put back what differs. "
        "setitimer(ITIMER_REAL, 0)."
    ),
    subject="engine",
)
def signals(scene: EngineScene) -> None:
    first = scene.probe()
    text = (
        PRINTS + "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.alarm(1000)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\nprint('done')\n"
    )
    scene.expect("signals.py", text, "done\n", "an ordinary script fails")
    for key in ("handled", "ignored", "blocked", "alarm"):
        scene.expect_same(
            key, first[key], "a script that changed signals", "signals stay as the script has set them"
        )
    scene.confirm("no handler, no blocked signal and no alarm was left")


@check(
    "engine-descriptors",
    proves="files that a script leaves open are closed, and programs do not get the control socket",
    sends="a script that opens ten files and keeps them, three times; one that starts a program",
    expects="as many descriptors as at the start; descriptors 0, 1 and 2 in the program",
    why=(
        "An engine lives for days: after 256 files it can open no more. A program with descriptor 3 can write "
        "marks."
    ),
    hint=(
        "Close what is in /proc/self/fd and was not there before, after gc.collect(). os.set_inheritable(3, "
        "False)."
    ),
    subject="engine",
)
def descriptors(scene: EngineScene) -> None:
    first = scene.probe()["descriptors"]
    text = PRINTS + "import os\nfor _ in range(10):\n    os.open('/dev/null', os.O_RDONLY)\nprint('done')\n"
    for _ in range(3):
        scene.expect("opens.py", text, "done\n", "an ordinary script fails")
    scene.expect_same(
        "descriptors", first, "a script that left ten files open", "files of a script stay open"
    )
    text = (
        PRINTS + "import subprocess\nls = subprocess.run(['ls', '/proc/self/fd'], close_fds=False, "
        "capture_output=True, text=True)\nprint(*ls.stdout.split())\n"
    )
    body = scene.run("starts.py", text).output.partition(b"\n\n")[2].decode(errors="replace").split()
    # ls itself has one more open: the directory.
    if len(body) != 4 or body[:3] != ["0", "1", "2"]:
        scene.fail(
            f"a program that a script started has the descriptors {' '.join(body)} (one is its own directory)",
            "let it have 0, 1 and 2",
            "descriptor 3, or the engine's copy of a socket, is inherited",
        )
    scene.confirm("thirty files were closed, and a program got three descriptors")


@check(
    "engine-errors",
    proves="a script that fails gives a status and a traceback, and the engine lives on",
    sends=(
        "scripts that raise, do not compile, call sys.exit() in five ways, and do not exist; an ordinary one "
        "after each"
    ),
    expects="the status that a new process would have had; the reason on descriptor 2; then an ordinary answer",
    why="One student's typing error must not end the scripts of all.",
    hint="except SystemExit for sys.exit(), except BaseException with traceback.print_exc() for all else.",
    subject="engine",
)
def errors(scene: EngineScene) -> None:
    plain = PRINTS + 'print("plain")\n'
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
                f"the engine ended with {name}{scene.errors(answer)}",
                f"write the mark with status {status}, and live on",
                "an exception of the script ends the engine",
            )
        if answer.status != status:
            scene.fail(
                f"the mark of {name} has status {answer.status}", f"give it {status}, as a process would have"
            )
        if words not in answer.errors:
            scene.fail(
                f"{name} left {short(answer.errors)} on descriptor 2",
                f"write the reason there: {words.decode()}",
                "the error is swallowed: the author of the script learns nothing",
            )
        scene.expect("plain.py", plain, "plain\n", f"{name} has broken the engine")
    scene.confirm(f"{len(cases)} scripts failed in {len(cases)} ways, and the engine went on")


@check(
    "engine-leftovers",
    proves="threads and children of a script do not live on beside the next one",
    sends=(
        "a script that forks a child which reaches the script's end; one that leaves a thread; an ordinary one "
        "after each"
    ),
    expects="one mark for each request; after the thread, no mark but the end of the engine",
    why="A forked copy of the engine that reads the control socket answers requests of others.",
    hint=(
        "After the script: os.getpid() differs? Flush and os._exit(). More than one entry in /proc/self/task? "
        "os._exit()."
    ),
    subject="engine",
)
def leftovers(scene: EngineScene) -> None:
    plain = PRINTS + 'print("plain")\n'
    forks = (
        PRINTS + "import os, sys\nsys.stdout.flush()\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n"
        '    print("parent")\nelse:\n    print("child")\n'
    )
    scene.expect("forks.py", forks, "child\nparent\n", "the child of a script goes on as a second engine")
    scene.expect("plain.py", plain, "plain\n", "the child of a script goes on as a second engine")
    threads = (
        PRINTS + "import threading, time\ndef wait():\n    while True:\n        time.sleep(0.05)\n"
        'threading.Thread(target=wait, daemon=True).start()\nprint("done")\n'
    )
    answer = scene.run("threads.py", threads)
    engine = scene.subject.engine
    if answer.status is not None and len(processes.thread_ids(engine.pid)) > 1:
        scene.fail(
            "the engine wrote its mark while a thread of the script runs on in it",
            "end without a mark where a script has left a thread: X-Switch starts another engine",
            "nothing ends a thread of Python but the end of its process",
        )
    if not answer.output.endswith(b"done\n"):
        scene.fail(
            f"the answer was {short(answer.output)}", "flush the script's output before the engine ends"
        )
    scene.expect(
        "plain.py", plain, "plain\n", "the engine does not start again, or a lock of the old one is left"
    )
    scene.confirm(
        "a child of a script ended with its script, and an engine with a thread left in it was replaced"
    )


@check(
    "engine-ends",
    proves="an engine ends when X-Switch leaves, also in the middle of a body",
    sends="half of a body, then the end of both sockets; and the end of both sockets between two requests",
    expects="the process ends by itself",
    why="Engines that do not notice pile up: a process for each that X-Switch has given up.",
    hint="readline() that returns b'' and read() that returns b'' say the same: nobody is there any more.",
    subject="engine",
)
def ends(scene: EngineScene) -> None:
    for what in ("between two requests", "in the middle of a body"):
        scene.probe()
        engine = scene.subject.engine
        if what != "between two requests":
            path = os.fsencode(scene.write("reads.py", PRINTS))
            engine.control.sendall(path + b"\nCONTENT_LENGTH=1000\n")
            engine.data.sendall(b"half of it")
        engine.control.close()
        engine.data.close()
        scene.note(do="note", text=f"both sockets are closed {what}")
        if not wait_for_end(scene):
            scene.fail(
                f"X-Switch has closed both sockets {what}, and the engine goes on",
                "end the process",
                "an empty read is taken for a request without words, or a copy of the socket keeps it open",
            )
        scene.subject.end()
    scene.confirm("the engine ended twice when nobody was there any more")


def wait_for_end(scene: EngineScene) -> bool:
    """Wait until the engine has ended, or is calm; return whether it has ended."""
    engine = scene.subject.engine
    scene.until(lambda: scene.subject.has_ended() or processes.state(engine.pid) == "Z", "the engine ends")
    return bool(scene.subject.has_ended())
