"""Streams: one contract (base.py) and its kinds, one for each way to wait. Nothing else touches a socket."""
