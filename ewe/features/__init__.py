"""What answers a request, and what stands around an answer: a file or a folder each. base.py is the interface.

A module whose last lines are FEATURE = Feature(...) is in the table ewe.config.feature_table. The others are parts
of one: static.py makes a directory's listing with indexes.py, and imports it only then.
"""
