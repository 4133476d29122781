"""The external links of the documents, docstrings and comments: where they lead, and whether they still answer.

`make links` asks each of them once, and prints a line for each that does not answer. Tests have no network: they
see only that a link is https, and that its host is in HOSTS.
"""

from __future__ import annotations

import http.client
import io
import re
import sys
import time
import tokenize
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from support.documents import BLOCK, PAGES, ROOT, SOURCES

# Every host that a link may lead to, with the use of its links
HOSTS = {
    "asgi.readthedocs.io": "the specification of ASGI",
    "datasette.io": "a program like the browser of databases",
    "docs.autolabproject.com": "what Autolab wants of a pack of the course",
    "docs.prairielearn.com": "what PrairieLearn wants of a pack of the course",
    "fastcgi-archives.github.io": "the specification of FastCGI",
    "github.com": "wrk, a load generator; what GitHub Classroom and Classroom 50 want of a pack",
    "gradescope-autograders.readthedocs.io": "what Gradescope wants of a pack of the course",
    "jinja.palletsprojects.com": "the language of the templates of pages from SQL",
    "locust.io": "the load generator of the lab",
    "ui.perfetto.dev": "a viewer of traces",
    "no-color.org": "the environment variable NO_COLOR",
    "peps.python.org": "the specification of WSGI",
    "prometheus.io": "what reads the metrics of the status page, and its text format",
    "sql-page.com": "a program like the pages from SQL",
    "www.haproxy.org": "the specification of the PROXY protocol",
    "www.rfc-editor.org": "the RFCs",
}
# Names of examples: reserved by RFC 2606 and RFC 6761, an address, a name without a dot
EXAMPLE = re.compile(r"(.*\.)?example(\.(com|net|org))?|.*\.(test|invalid|localhost)|[\d.]+|\[.*|[^.]*")
URL = re.compile(r"\bhttps?://[\w.-]+\.[a-z]+(?=[/\s)>\]\"'.,;:?#]|$)(?::\d+)?(?:/[\w~%/.+&=?#-]*[\w/])?")
BEFORE_A_DOCSTRING = (tokenize.NEWLINE, tokenize.INDENT, tokenize.NL, tokenize.COMMENT)
TIMEOUT_S = 20.0
PAUSE_S = 1.0  # between two questions to one host
AGENT = "ewe-links (checks the links of ewe's documents)"


def external_links() -> dict[str, list[str]]:
    """Return each external URL with the places that name it, as file:line."""
    found: dict[str, list[str]] = {}
    for name, text in [
        *((page, prose(page)) for page in PAGES),
        *((name, remarks(name)) for name in SOURCES),
    ]:
        for link in URL.finditer(text):
            host = urlsplit(link[0]).hostname or ""
            if not EXAMPLE.fullmatch(host):
                line = text.count("\n", 0, link.start()) + 1
                found.setdefault(link[0], []).append(f"{name}:{line}")
    return found


def prose(page: str) -> str:
    """Return a page without its code, with as many lines."""
    text = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), (ROOT / page).read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", "", text)


def remarks(source: str) -> str:
    """Return the comments and the docstrings of a source file with a URL, each in its line, without code."""
    if "/tests/" in f"/{source}":
        return ""
    text = (ROOT / source).read_text(encoding="utf-8")
    if not URL.search(text):
        return ""
    lines = [""] * (text.count("\n") + 2)
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        docstring = token.type == tokenize.STRING and before in BEFORE_A_DOCSTRING
        if docstring or token.type == tokenize.COMMENT:
            for number, line in enumerate(token.string.splitlines(), token.start[0] - 1):
                lines[number] = re.sub(r"`[^`]*`|\"[^\"]*\"", "", line)
        before = token.type
    return "\n".join(lines)


def faults() -> Iterator[str]:
    """Yield a line for each external link that the network is not needed to refuse."""
    hosts = set()
    for url, places in external_links().items():
        host = urlsplit(url).hostname or ""
        hosts.add(host)
        if not url.startswith("https://"):
            yield f"{url} ({', '.join(places)}): write https"
        if host not in HOSTS:
            yield f"{url} ({', '.join(places)}): add {host} to HOSTS in tests/support/links.py, with its use"
    for host in sorted(HOSTS.keys() - hosts):
        yield f"no link leads to {host}: remove it from HOSTS in tests/support/links.py"


def answer_of(url: str) -> str:
    """Ask for a URL, first by HEAD, then by GET. Return the empty text, or the reason why it does not answer."""
    reason = ""
    for method in ("HEAD", "GET"):
        request = urllib.request.Request(url, method=method, headers={"User-Agent": AGENT})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"{error.code} {error.reason}"
        except urllib.error.URLError as error:
            return str(error.reason)  # GET would meet the same network
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
    return reason


def main() -> int:
    """Ask every external link once; return 1 if one does not answer."""
    asked: dict[str, float] = {}
    silent = 0
    links = external_links()
    for url in sorted(links):
        host = urlsplit(url).hostname or ""
        time.sleep(max(0.0, asked.get(host, 0.0) + PAUSE_S - time.monotonic()))
        reason = answer_of(url.partition("#")[0])
        asked[host] = time.monotonic()
        if reason:
            silent += 1
            print(f"{url}: {reason} ({', '.join(links[url])})", flush=True)
    print(f"{len(links) - silent} of {len(links)} external links answer.")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
