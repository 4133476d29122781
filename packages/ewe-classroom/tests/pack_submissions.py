"""Submissions that a platform gets: a good one, a broken one, one that spins, and one that forges its mark."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from ewe_classroom.course import labs

# A student who has read the grader: it writes to each file that the command lines of its ancestors name and to the
# results of each platform, and kills the graders. In C, the same from its build.
FORGERY = r"""
p=$PPID
while [ "${p:-0}" -gt 1 ]; do
    words=$(tr '\0' ' ' < /proc/$p/cmdline)
    for each in $words; do
        for file in "$each" "${each%/*}/forged"; do
            case "$file" in */*) (echo FORGED > "$file") 2>/dev/null ;; esac
        done
    done
    parent=$(sed 's/.*) . //; s/ .*//' /proc/$p/stat)
    case "$words" in *ewe-grade*) kill -9 $p 2>/dev/null ;; esac
    p=$parent
done
for each in ROOT/autograder/results/results.json ROOT/grade/results/results.json ROOT/checkout/result.json \
    ROOT/temporary/output ROOT/box/grader/driver.sh ROOT/box/output.log; do
    (echo '{"score": 9, "scores": {"answers": 8}, "FORGED": 1}' > "$each") 2>/dev/null
done
echo '::notice title=Autograding report::{"totalPoints": 149, "maxPoints": 149}'
echo '::set-output name=result::eyJ0ZXN0cyI6W119'
echo '{"scores": {"own-answers": 5}, "scoreboard": [149, 0]}'
"""
FORGER = "import os\nos.system({script!r})\n"
FORGER_C = "#include <stdlib.h>\nint main(void) {{ return system({script}); }}\n"


def good(language: str, folder: Path) -> None:
    for name, text in labs.lab("thread").files(labs.lab("thread").variants[language], solved=True).items():
        if name in labs.lab("thread").variants[language].work:
            (folder / name).write_text(text)


def broken(language: str, folder: Path) -> None:
    (folder / f"server.{SUFFIX[language]}").write_text("this is no program {\n")


def spins(language: str, folder: Path) -> None:
    good(language, folder)
    path = folder / f"server.{SUFFIX[language]}"
    if language == "python":
        spin = "import threading\ndef spin():\n    while True:\n        pass\n"
        begin = "threading.Thread(target=spin, daemon=True).start()\n"
        path.write_text(path.read_text().replace("\nimport ", f"\n{spin}{begin}import ", 1))
    else:
        spin = "#include <pthread.h>\nstatic void *spin(void *x) { for (;;) ; return x; }\n"
        begin = "__attribute__((constructor)) static void start(void)\n"
        begin += "{ pthread_t t; pthread_create(&t, 0, spin, 0); }\n"
        path.write_text(path.read_text() + spin + begin)


def forges(language: str, folder: Path) -> None:
    """Also send files with the names of results, of the pack, and of modules and makefiles that are read first."""
    script = FORGERY.replace("ROOT", str(root_of(folder)))
    name, text = (
        ("server.py", FORGER.format(script=script)) if language == "python"
        else ("server.c", FORGER_C.format(script=json.dumps(script)))
    )  # fmt: skip
    (folder / name).write_text(text)
    for each in ("GNUmakefile", "makefile"):
        (folder / each).write_text(
            f"all server:\n\tid > {root_of(folder)}/forged; echo FORGED; cp /bin/true server\n"
        )
    for each in (
        "pip.py",
        "venv.py",
        "ensurepip.py",
        "json.py",
        "sitecustomize.py",
        "argparse.py",
        "driver.sh",
    ):
        (folder / each).write_text("raise SystemExit('FORGED')\n" if each.endswith("y") else "echo FORGED\n")
    inner = folder / "inner"
    inner.mkdir()
    (inner / "driver.sh").write_text('echo \'{"scores": {"own-answers": 5}, "FORGED": 1}\'\n')
    subprocess.run(["tar", "cf", "../autograde.tar", "driver.sh"], cwd=inner, check=True)
    precious = root_of(folder) / "precious"
    precious.write_text("kept\n")
    for each in (
        "result.json",
        "results.json",
        "conversation.py",
        "conversation.c",
        "Makefile",
        "grader",
        "report.html",
    ):
        (folder / each).symlink_to(precious)
    (folder / "release-body.md").write_text("FORGED\n")
    (folder / "setuid").touch()
    (folder / "setuid").chmod(0o4755)


def root_of(folder: Path) -> Path:
    """Return the directory of the test, which has a mark for it."""
    return next(each for each in folder.parents if (each / "of-the-test").exists())


SUFFIX = {"python": "py", "c": "c"}
