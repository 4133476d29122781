"""The shell scripts of the packs: install ewe from the wheels of the pack, and grade one submission as root.

    root's directory, mode 700 ◀── ewe-grade --gradescope "$private/result" ... (root)
              │                            └─ the server of the student (another account)
              └── copied when the server's processes have ended ─▶ the file that the platform reads

The submission runs as another account than the script. It can neither enter the directory of the result, nor send
a signal to the grader, nor change the script or the installed grader.

Possible failures: the script does not run as root, or no Python 3.11 is there. It then writes one line and no
result, so the platform reports that the grader has failed. A zero would blame the student.
"""

from __future__ import annotations

from ewe import __version__

# Not below /opt: on GitHub's runners, every account may write to /opt and to the Pythons of setup-python. A
# submission there could change the grader.
EWE_DIRECTORY = "/var/lib/ewe"
PYTHON_LIST = "/usr/bin/python3 /usr/local/bin/python3 python3 python3.14 python3.13 python3.12 python3.11"

INSTALL = """\
python=
for each in {pythons}; do
    if "$each" -I -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$each
        break
    fi
done
[ -n "$python" ] || {{ echo 'ewe needs Python 3.11 or newer, with venv: install python3-venv' >&2; exit 1; }}
umask 022
"$python" -I -m venv {ewe} && {ewe}/bin/python -I -m pip install --quiet --disable-pip-version-check --no-index \\
    --find-links {wheels} 'ewe-classroom=={version}' >&2 || exit 1
"""

ROOT_SCRIPT = """\
#!/bin/sh
# ewe-grade gives the submission another account, which cannot change the result. Only root can do that.
grade() {{
    if [ "$(id -u)" != 0 ]; then
        echo 'This script grades as root: without root, a submission could change its mark.' >&2
        exit 1
    fi
    umask 022
    private=$(mktemp -d) || exit 1
    trap 'rm -rf "$private"' EXIT
{before}    cd {source} || exit 1
    {command}
    status=$?
    if [ "$status" -ge 128 ]; then
        {zero}
    fi
{after}}}
# A shell reads a function to its end before it runs it: a change of this file has no effect meanwhile.
grade "$@"; exit
"""
ZERO = '--zero "the grader was killed (status $status), which is no mark of your work: tell your teacher"'

# GitHub's runner obeys lines such as `::notice title=Autograding report::...` in the output of a step, also with
# spaces before them, and the report of a failed check quotes what the submission wrote. Between these two lines it
# obeys nothing, since the submission does not know the word.
STOP_COMMANDS = """\
word=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
echo "::stop-commands::$word"
"""
OBEY_COMMANDS = 'echo "::$word::"\n'


def install(wheels: str) -> str:
    """Return the commands that install ewe from a directory of wheels. They need no network.

    -I: a venv.py or pip.py in the current directory, which may be a submission's, is not imported.
    """
    return INSTALL.format(pythons=PYTHON_LIST, ewe=EWE_DIRECTORY, wheels=wheels, version=__version__)


def root_script(command: str, *, source: str, result: str = "", before: str = "", after: str = "") -> str:
    """Return a script that grades one submission as root.

    command: writes its result to `$private/result`, or to standard output. source: the directory of the
    submission. result: the file that the platform reads. before, after: more commands; $status is that of the
    grader.
    """
    # A submission may contain a symbolic link with the name of the result: cp would write to the link's target.
    copy = f'rm -rf {result}\ncp "$private/result" {result} || exit 1\n' if result else ""
    return ROOT_SCRIPT.format(
        before=indented(before),
        source=source,
        command=command,
        zero=f"{command} {ZERO}",
        after=indented(copy + after),
    )


def indented(lines: str) -> str:
    """Return the lines as they stand in the function of ROOT_SCRIPT."""
    return "".join(f"    {line}\n" if line else "\n" for line in lines.splitlines())
