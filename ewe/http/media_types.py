"""Media types by file name. ewe has its own table, so that it sends the same types on every machine.

ewe uses the system's table only for other extensions. Some systems' tables call JavaScript text/plain.
"""

from __future__ import annotations

TYPES = {
    "7z": "application/x-7z-compressed", "aac": "audio/aac", "atom": "application/atom+xml",
    "avi": "video/x-msvideo", "avif": "image/avif", "bin": "application/octet-stream",
    "bmp": "image/bmp", "br": "application/octet-stream", "bz2": "application/x-bzip2",
    "c": "text/x-c", "cc": "text/x-c", "conf": "text/plain", "cpp": "text/x-c", "css": "text/css",
    "csv": "text/csv", "deb": "application/vnd.debian.binary-package", "diff": "text/x-diff",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "epub": "application/epub+zip", "flac": "audio/flac", "gif": "image/gif", "go": "text/x-go",
    "gz": "application/gzip", "h": "text/x-c", "htm": "text/html", "html": "text/html",
    "ico": "image/vnd.microsoft.icon", "ics": "text/calendar", "iso": "application/octet-stream",
    "jar": "application/java-archive", "java": "text/x-java", "jpeg": "image/jpeg", "jpg": "image/jpeg",
    "js": "text/javascript", "json": "application/json", "jsonld": "application/ld+json",
    "jxl": "image/jxl", "log": "text/plain", "m4a": "audio/mp4", "m4v": "video/mp4", "map": "application/json",
    "md": "text/markdown", "mjs": "text/javascript", "mkv": "video/matroska", "mp3": "audio/mpeg",
    "mp4": "video/mp4", "mpeg": "video/mpeg", "mpg": "video/mpeg",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "ods": "application/vnd.oasis.opendocument.spreadsheet", "odt": "application/vnd.oasis.opendocument.text",
    "ogg": "audio/ogg", "ogv": "video/ogg", "opus": "audio/ogg", "otf": "font/otf", "patch": "text/x-diff",
    "pdf": "application/pdf", "pl": "text/x-perl", "png": "image/png", "ps": "application/postscript",
    "py": "text/x-python", "rs": "text/x-rust", "rss": "application/rss+xml", "rst": "text/x-rst",
    "rtf": "application/rtf", "sh": "text/x-shellscript", "sql": "application/sql", "svg": "image/svg+xml",
    "tar": "application/x-tar", "tex": "text/x-tex", "tgz": "application/gzip", "tif": "image/tiff",
    "tiff": "image/tiff", "toml": "application/toml", "ts": "text/x-typescript", "tsv": "text/tab-separated-values",
    "ttf": "font/ttf", "txt": "text/plain", "vtt": "text/vtt", "wasm": "application/wasm",
    "wav": "audio/wav", "weba": "audio/webm", "webm": "video/webm", "webmanifest": "application/manifest+json",
    "webp": "image/webp", "woff": "font/woff", "woff2": "font/woff2", "xhtml": "application/xhtml+xml",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "xml": "application/xml",
    "yaml": "application/yaml", "yml": "application/yaml", "xz": "application/x-xz", "zip": "application/zip",
    "zst": "application/zstd",
}  # fmt: skip

# Text formats whose types do not begin with text/.
TEXTUAL = frozenset({"application/javascript", "application/xml", "application/sql", "image/svg+xml"})
NAMES = {"makefile": "text/plain", "readme": "text/plain", "license": "text/plain", "copying": "text/plain"}
DEFAULT = "application/octet-stream"


def content_type(name: str) -> str:
    """Return the Content-Type of a file by its name. Text is declared to be UTF-8."""
    stem, dot, extension = name.rpartition(".")
    kind = TYPES.get(extension.lower()) if dot and stem else None
    kind = kind or NAMES.get(name.lower()) or from_system(extension if dot and stem else "")
    return kind + "; charset=utf-8" if kind.startswith("text/") or kind in TEXTUAL else kind


def from_system(extension: str) -> str:
    """Return the type of an extension in the system's table.

    mimetypes gets only the extension: it would read a file name such as "data:text/html,..." as a URL.
    """
    import mimetypes

    kind, coding = mimetypes.guess_type("file." + extension, strict=False)
    return DEFAULT if kind is None or coding is not None else kind
