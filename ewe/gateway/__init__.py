"""The side of a feature that talks to programs: CGI variables and output, FastCGI records, processes, upstreams."""
