"""Streams: one contract (base.py), and one kind for each way to wait. Only streams touch a client's socket."""
