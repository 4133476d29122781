"""ewe: a web server that holds one HTTP conversation under every classic concurrency model."""

__version__ = "0.1.0"
