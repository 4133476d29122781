"""The scripts with which `ewe.xswitch.check` tests an engine, in the languages that the checker knows.

echo: a head, the arguments, CHECK_VALUE and the directory on a line each, an empty line, the body.
big: a head and @BIG@ bytes. count: a head, and a global variable that should be 0, plus 1.
exit: a head, "going", exit status 3. fail: an error that the script does not handle.
"""

SCRIPTS = {
    ".py": {
        "echo": """import os, sys
print("Content-Type: text/plain\\n")
for word in [*sys.argv[1:], os.environ.get("CHECK_VALUE", ""), os.getcwd()]:
    print(word)
print(flush=True)
sys.stdout.buffer.write(sys.stdin.buffer.read())
""",
        "big": """print("Content-Type: text/plain\\n\\n" + "x" * @BIG@, end="")
""",
        "count": """import builtins, os
try:
    count
except NameError:
    count = getattr(builtins, "count", 0)
builtins.count = count = count + 1
print(f"Content-Type: text/plain\\n\\n{count}")
""",
        "exit": """import sys
print("Content-Type: text/plain\\n\\ngoing")
sys.exit(3)
""",
        "fail": """print("Content-Type: text/plain\\n")
raise ValueError("on purpose")
""",
    },
    ".pl": {
        "echo": """use Cwd;
print "Content-Type: text/plain\\n\\n";
print "$_\\n" for @ARGV, $ENV{CHECK_VALUE} // '', getcwd();
print "\\n";
binmode STDIN; binmode STDOUT;
local $/;
print <STDIN> // '';
""",
        "big": """print "Content-Type: text/plain\\n\\n", "x" x @BIG@;
""",
        "count": """our $count;
$count++;
print "Content-Type: text/plain\\n\\n$count\\n";
""",
        "exit": """print "Content-Type: text/plain\\n\\ngoing\\n";
eval { exit 3 };
print "not reached\\n";
""",
        "fail": """print "Content-Type: text/plain\\n\\n";
die "on purpose";
""",
    },
    ".sh": {
        "echo": """printf 'Content-Type: text/plain\\n\\n'
for word in "$@" "$CHECK_VALUE" "$PWD"; do printf '%s\\n' "$word"; done
echo
cat
""",
        "big": """printf 'Content-Type: text/plain\\n\\n'
head -c @BIG@ /dev/zero | tr '\\0' x
""",
        "count": """count=$((count + 1))
export count
printf 'Content-Type: text/plain\\n\\n%d\\n' $count
""",
        "exit": """printf 'Content-Type: text/plain\\n\\ngoing\\n'
exit 3
""",
        "fail": """printf 'Content-Type: text/plain\\n\\n'
echo "on purpose" >&2
exit 1
""",
    },
    ".js": {
        "echo": """const fs = require('fs');
const words = [...process.argv.slice(2), process.env.CHECK_VALUE ?? '', process.cwd()];
fs.writeSync(1, 'Content-Type: text/plain\\n\\n' + words.join('\\n') + '\\n\\n');
const body = fs.readFileSync(0);
for (let at = 0; at < body.length; ) at += fs.writeSync(1, body, at);
""",
        "big": """const fs = require('fs');
const text = Buffer.from('Content-Type: text/plain\\n\\n' + 'x'.repeat(@BIG@));
for (let at = 0; at < text.length; ) at += fs.writeSync(1, text, at);
""",
        "count": """globalThis.count = (globalThis.count ?? 0) + 1;
require('fs').writeSync(1, `Content-Type: text/plain\\n\\n${count}\\n`);
""",
        "exit": """require('fs').writeSync(1, 'Content-Type: text/plain\\n\\ngoing\\n');
process.exit(3);
""",
        "fail": """require('fs').writeSync(1, 'Content-Type: text/plain\\n\\n');
throw new Error('on purpose');
""",
    },
}
