"""The settings of compression: compress, compress-*."""

from __future__ import annotations

from ewe.config.setting import Setting
from ewe.config.setting_types import CODINGS, MEDIA_TYPES, K, choice, size

# fmt: off
COMPRESS = Setting("off", choice("off", "files", "public", "all"), "what ewe compresses while it sends it:"
                   " nothing, files, also responses of programs to requests without Cookie and Authorization"
                   " (public), or all; a file.gz, .br or .zst beside a file is sent in any case",
                   group="compression", scope="location", key="compress", after="proxy-protocol")
COMPRESS_TYPES = Setting(("text/*", "application/json", "application/*+json", "application/javascript",
                          "application/xml", "application/*+xml", "image/*+xml", "application/wasm",
                          "font/otf", "font/ttf"), MEDIA_TYPES, "the media types that are compressed; may be"
                         " repeated", group="compression", scope="location", key="compress-types", after="compress")
COMPRESS_MIN_SIZE = Setting(1 * K, size(0), "the smallest body that is compressed, where its size is known",
                            group="compression", scope="location", key="compress-min-size", after="compress-types")
COMPRESS_CODINGS = Setting((), CODINGS, "the codings, the preferred one first; empty: zstd, br and gzip,"
                           " as far as their packages are installed", group="compression", scope="location",
                           key="compress-codings", after="compress-min-size")
# fmt: on
SETTINGS = (COMPRESS, COMPRESS_TYPES, COMPRESS_MIN_SIZE, COMPRESS_CODINGS)
