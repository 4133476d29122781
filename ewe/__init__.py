"""ewe: a web server that runs the same HTTP conversation under every classic concurrency model."""

__version__ = "0.1.0"
