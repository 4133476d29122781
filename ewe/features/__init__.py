"""What answers a request: one file a concern, each with a class that has respond(). base.py is the interface.

indexes.py is the exception: static.py makes a directory's listing with it, and imports it only then.
"""
