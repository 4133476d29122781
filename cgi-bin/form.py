#!/usr/bin/env python3
"""Show the fields of a form. A GET has them in its query. A POST has them in its body, as
application/x-www-form-urlencoded or, with files, as multipart/form-data (RFC 7578)."""

import os
import re
import sys
from html import escape
from urllib.parse import parse_qsl

LARGEST_BODY = 16 * 1024 * 1024  # bytes; the whole body is in memory
MOST_FIELDS = 1000
PREVIEW = 400  # the page shows at most this many bytes of a body or a file

# ; name=token or ; name="quoted", where \" and \\ stand for " and \
PARAMETER = re.compile(r"""\s*;\s*([^\s;="]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))""")
PARAMETERS = re.compile(f"(?:{PARAMETER.pattern})*")

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – ewe</title>
<link rel="icon" href="/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/style.css">
</head>
<body>
<main>
<h1>{title}</h1>
{content}
<p><a href="/form.html">Back to the forms</a></p>
</main>
</body>
</html>
"""


class Refused(Exception):
    """A request is refused. status: of the response; reason: the text of the page; field: a header field."""

    def __init__(self, status, reason, field=""):
        super().__init__(reason)
        self.status, self.reason, self.field = status, reason, field


class Upload:
    """An uploaded file in a field."""

    def __init__(self, filename, content_type, content):
        self.filename, self.content_type, self.content = filename, content_type, content


def read_request():
    """Return the form as (bytes, fields). A field is a pair of a name and a str or an Upload."""
    method = os.environ.get("REQUEST_METHOD", "GET")
    if method in ("GET", "HEAD"):
        data = os.environb.get(b"QUERY_STRING", b"")
        return data, parse_urlencoded(data)
    if method != "POST":
        raise Refused("405 Method Not Allowed", "A form comes by GET or POST.", "Allow: GET, HEAD, POST\n")

    content_type = os.environ.get("CONTENT_TYPE", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/x-www-form-urlencoded":
        data = read_body()
        return data, parse_urlencoded(data)
    if media_type == "multipart/form-data":
        data = read_body()
        return data, parse_multipart(data, content_type)
    raise Refused(
        "415 Unsupported Media Type",
        "The body of a form is application/x-www-form-urlencoded or multipart/form-data.",
    )


def read_body():
    """Read CONTENT_LENGTH bytes of standard input, and no more: a read to its end might wait forever."""
    length = os.environ.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdecimal()):
        raise Refused("400 Bad Request", "CONTENT_LENGTH is not a number.")
    if len(length) > 15 or int(length) > LARGEST_BODY:
        raise Refused("413 Content Too Large", f"At most {LARGEST_BODY:,} bytes are taken.")
    data = sys.stdin.buffer.read(int(length))
    if len(data) < int(length):
        raise Refused("400 Bad Request", "The body ended before its announced length.")
    return data


def decode(data):
    """Decode a text. The pages of the forms are in UTF-8, so every browser sends UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Refused("400 Bad Request", "The fields are not encoded in UTF-8.") from None


def parse_urlencoded(data):
    text = decode(data)
    if text.count("&") >= MOST_FIELDS:
        raise Refused("400 Bad Request", f"There are more than {MOST_FIELDS} fields.")
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise Refused("400 Bad Request", "The fields are not encoded in UTF-8.") from None


def parse_multipart(data, content_type):
    """Return the fields of the parts between the boundary's lines."""
    boundary = parameters(content_type)[1].get("boundary", "")
    if not (boundary.isascii() and 1 <= len(boundary) <= 70):
        raise Refused("400 Bad Request", "The multipart body has no usable boundary.")
    delimiter = b"\r\n--" + boundary.encode()

    # The line end before a boundary belongs to the boundary, not to the part. The first boundary may
    # have none before it, so add one. Ignore the text before the first boundary and after the last.
    _, *parts = (b"\r\n" + data).split(delimiter, MOST_FIELDS + 1)
    fields = []
    for part in parts:
        if part.startswith(b"--"):
            return fields
        if len(fields) == MOST_FIELDS:
            raise Refused("400 Bad Request", f"There are more than {MOST_FIELDS} fields.")
        padding, _, part = part.partition(b"\r\n")
        head, end, content = part.partition(b"\r\n\r\n")
        if padding.strip(b" \t") or not end:
            raise Refused("400 Bad Request", "A part of the multipart body is malformed.")
        fields.append(parse_part(decode(head), content))
    raise Refused("400 Bad Request", "The multipart body lacks its closing boundary.")


def parse_part(head, content):
    headers = {}
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    kind, disposition = parameters(headers.get("content-disposition", ""))
    if kind != "form-data" or "name" not in disposition:
        raise Refused("400 Bad Request", "A part of the multipart body does not name its field.")
    if "filename" in disposition:
        content_type = headers.get("content-type", "text/plain")
        return disposition["name"], Upload(disposition["filename"], content_type, content)
    return disposition["name"], decode(content)


def parameters(text):
    """Parse a field value such as: form-data; name="photo"; filename="ewe.png". The email package could
    parse it too, but takes long to import, and fails at parameters that RFC 7578 forbids."""
    kind = text.partition(";")[0]
    rest = text[len(kind) :].rstrip(" \t;")
    if not PARAMETERS.fullmatch(rest):
        raise Refused("400 Bad Request", "A header field of the multipart body is malformed.")
    found = {}
    for name, quoted, token in PARAMETER.findall(rest):
        found[name.lower()] = token or re.sub(r'\\(["\\])', r"\1", quoted)
    return kind.strip().lower(), found


def show(value):
    """Return a field's value as HTML. All text of the client is escaped: it could hold a script."""
    if isinstance(value, str):
        return pre(value) if value else "<em>empty</em>"
    if not value.filename and not value.content:
        return "<em>no file chosen</em>"

    from hashlib import sha256

    return (
        f"<strong>{escape(value.filename)}</strong>, {escape(value.content_type)}, "
        f"{len(value.content):,} bytes<br><small>SHA-256 {sha256(value.content).hexdigest()}</small>"
        f"{preview(value.content)}"
    )


def pre(text):
    return f"<pre>\n{escape(text)}</pre>"  # HTML drops a line end right after <pre>, so add one


def preview(data):
    """Return the first PREVIEW bytes as HTML, with a dot for each byte that is not text."""
    text = (
        data[:PREVIEW].decode(errors="replace").removesuffix("\ufffd")
    )  # the last character may be incomplete
    if "\ufffd" in text:  # the bytes are not UTF-8, so a character beyond ASCII would be an accident
        text = data[:PREVIEW].decode("ascii", errors="replace").replace("\ufffd", "·")
    text = "".join(c if c.isprintable() or c in "\r\n\t" else "·" for c in text)
    return pre(text + (" …" if len(data) > PREVIEW else ""))


def answer():
    """Return the header fields of the response, and its body."""
    try:
        data, fields = read_request()
    except Refused as refused:
        title = refused.status.partition(" ")[2]
        content = f"<p>{escape(refused.reason)}</p>"
        return f"Status: {refused.status}\n{refused.field}", PAGE.format(title=title, content=content)

    variables = [
        (name, os.environ[name].encode(errors="replace").decode())
        for name in ("REQUEST_METHOD", "CONTENT_TYPE", "CONTENT_LENGTH")
        if os.environ.get(name)
    ]
    content = "<h2>The fields</h2>\n"
    if fields:
        content += table("Field", "Value", ((escape(name), show(value)) for name, value in fields))
    else:
        content += "<p>None were sent.</p>"
    content += "\n<h2>How they came</h2>\n"
    content += table("Meta-variable", "Value", ((name, escape(value)) for name, value in variables))
    where = "standard input" if os.environ.get("REQUEST_METHOD") == "POST" else "QUERY_STRING"
    if data:
        content += f"\n<p>In {where}:</p>\n{preview(data)}"
    return "", PAGE.format(title="What you sent", content=content)


def table(first, second, rows):
    lines = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>\n' for name, value in rows)
    return (
        f'<table>\n<thead><tr><th scope="col">{first}</th><th scope="col">{second}</th></tr></thead>\n'
        f"<tbody>\n{lines}</tbody>\n</table>"
    )


head, page = answer()
head += "Content-Type: text/html; charset=utf-8\n\n"
if os.environ.get("REQUEST_METHOD") == "HEAD":
    page = ""
sys.stdout.buffer.write((head + page).encode())
