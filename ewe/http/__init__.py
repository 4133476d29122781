"""The grammar of HTTP. This package uses no sockets, files or clocks. Each module can be read and tested alone.

Start with parser.py for requests and messages.py for responses. There are three exceptions: dates.py reads the
current year for dates with a two-digit year, ranges.py uses random bytes for a boundary, and media_types.py reads
the system's table of media types.
"""
