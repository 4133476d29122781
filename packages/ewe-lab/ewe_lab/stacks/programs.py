"""The programs that experiments serve: the same little work in Python, Perl, PHP and Java.

    hello    52 bytes of text, as in table 1 of X-Switch
    large    43,000 bytes of random text, as in its figure 4
    page     as many bytes as the thesis's page has in the language
    blog     the main page of a blog in PHP: half a megabyte of source in 17 files, of which little runs

ewe_lab.stacks.ways has the ways to serve them. Raises LabError.
"""

from __future__ import annotations

from pathlib import Path

from ewe_lab.bench.experiment import Bench
from ewe_lab.stacks.applications import HELLO, PAGE_PYTHON
from ewe_lab.stacks.tomcat import write_application

LARGE_BYTES = 43_000  # bytes of random text, as in figure 4 of X-Switch
PAGE_PHP = "Hello, World!\n"  # 14 bytes, as in DT-1 of the thesis
PAGE_SERVLET, PAGE_JSP = "x" * 669 + "\n", "x" * 372 + "\n"  # 670 and 373 bytes, as in DT-3 and DT-4
JSP = f'<%@ page contentType="text/plain" %><% for (int i = 1; i < {len(PAGE_JSP)}; i++) out.print("x"); %>\n'
# of the blog: files that its main page includes, and functions in each of them
INCLUDED_FILES, FUNCTIONS_PER_FILE = 16, 64
PAGE_BLOG = "".join(f"<p>part {part}: 3 words</p>\n" for part in range(INCLUDED_FILES))
PYTHON = "#!/usr/bin/python3\n"
PERL = "/usr/bin/perl"  # the first line of our programs names this Perl; another Perl on PATH is not used
# Runs hello.py unmodified under WSGI, with the least work that runs a CGI script in the server's interpreter.
WSGI_SCRIPT = """\
import io, os, sys

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hello.py")
with open(SCRIPT) as file:
    CODE = compile(file.read(), SCRIPT, "exec")


def application(environ, start_response):
    os.environ.clear()
    os.environ.update({name: value for name, value in environ.items() if isinstance(value, str)})
    before, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO())
    try:
        exec(CODE, {"__name__": "__main__", "__file__": SCRIPT})
        sys.stdout.flush()
        answer = sys.stdout.buffer.getvalue()
    finally:
        sys.stdout = before
    head, _, body = answer.partition(b"\\n\\n")
    start_response("200 OK", [tuple(line.split(": ", 1)) for line in head.decode().splitlines()])
    return [body]
"""
PROGRAMS = {
    "hello.py": f"{PYTHON}print('Content-Type: text/plain\\n')\nprint({HELLO[:-1]!r})\n",
    "hello.pl": f'#!/usr/bin/perl\nprint "Content-Type: text/plain\\n\\n{HELLO[:-1]}\\n";\n',
    "hello.php": f'<?php header("Content-Type: text/plain"); echo "{HELLO[:-1]}\\n";\n',
    "large.pl": "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\n\";\n"
    f"print join '', map {{ chr(97 + int rand 26) }} 1 .. {LARGE_BYTES};\n",
    "hello_wsgi.py": "def application(environ, start_response):\n"
    f"    start_response('200 OK', [('Content-Type', 'text/plain')])\n    return [{HELLO.encode()!r}]\n",
    "hello_wsgi_script.py": WSGI_SCRIPT,
    "page.php": PAGE_PHP,
    "page-cgi.php": f"#!/usr/bin/php-cgi -dcgi.force_redirect=0\n{PAGE_PHP}",
    "page.py": f"{PYTHON}print('Content-Type: text/plain\\n')\nprint('x' * {len(PAGE_PYTHON) - 1})\n",
    "page_wsgi.py": "def application(environ, start_response):\n"
    "    start_response('200 OK', [('Content-Type', 'text/plain')])\n"
    f"    return [b'x' * {len(PAGE_PYTHON) - 1} + b'\\n']\n",
    "hello_fcgi.pl": "#!/usr/bin/perl\nuse FCGI;\nmy $request = FCGI::Request();\n"
    f'while ($request->Accept() >= 0) {{ print "Content-Type: text/plain\\n\\n{HELLO[:-1]}\\n"; }}\n',
    "blog.php": f"<?php for ($part = 0; $part < {INCLUDED_FILES}; $part++) {{\n"
    "    require_once __DIR__ . \"/blog-$part.php\";\n"
    "    echo \"part_{$part}_0\"(array('a', 'blog', 'page'));\n}\n",
}  # fmt: skip
BLOG_FUNCTION = """\
function part_{part}_{number}($words, $options = array()) {{
    $found = array();
    foreach ($words as $place => $word) {{
        if (isset($options['only']) && !in_array($word, $options['only'])) {{
            continue;
        }}
        $found[$place] = str_replace(array('&', '<'), array('&amp;', '&lt;'), $word) . '-{number}';
    }}
    if (count($found) === 0) {{
        return "<p>part {part}: nothing here</p>\\n";
    }}
    return sprintf("<p>part %d: %d words</p>\\n", {part}, count($found));
}}
"""
EXTENSIONS = {"python": "py", "perl": "pl", "php": "php"}
PAGES = {"php": PAGE_PHP, "python": PAGE_PYTHON, "servlet": PAGE_SERVLET, "jsp": PAGE_JSP, "blog": PAGE_BLOG}


def programs_directory(lab: Bench) -> Path:
    """Return a cgi-bin directory with the programs, which all accounts may read."""
    directory = lab.directory / "programs"
    if not directory.exists():
        directory.mkdir()
        for name, text in PROGRAMS.items():
            (directory / name).write_text(text)
            (directory / name).chmod(0o755)
    return directory


def write_blog(lab: Bench) -> None:
    """Write the files that the blog's main page includes, each with FUNCTIONS_PER_FILE functions."""
    directory = programs_directory(lab)
    for part in range(INCLUDED_FILES):
        functions = (BLOG_FUNCTION.format(part=part, number=number) for number in range(FUNCTIONS_PER_FILE))
        (directory / f"blog-{part}.php").write_text("<?php\n" + "".join(functions))


def write_web_application(lab: Bench) -> str:
    """Make a web application in the cgi-bin, with the servlets `hello` and `page` and the JSP page `page.jsp`.

    Returns its name. Raises LabError.
    """
    from ewe.xswitch.engine_kinds import JAVA_DIRECTORY  # late: it imports much of X-Switch

    directory = programs_directory(lab) / "servlets"
    if not directory.exists():
        library = next(Path(JAVA_DIRECTORY, "lib").glob("jakarta.servlet-api-*.jar"))
        write_application(directory, {"hello": HELLO, "page": PAGE_SERVLET}, library)
        (directory / "page.jsp").write_text(JSP)
    return directory.name
