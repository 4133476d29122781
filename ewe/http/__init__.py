"""The grammar of HTTP: no socket, no file, no clock. Each file can be read, tested and fuzzed alone.

Start with parser.py for requests and messages.py for responses. Three small looks outside remain: the year, for
dates with two digits (dates.py), random bytes for a boundary (ranges.py), and the system's table of media types.
"""
