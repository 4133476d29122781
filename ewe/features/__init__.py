"""Features: the handlers that answer requests, and the middlewares around them. base.py is the interface.

Each feature is one module or one package. A module that ends in FEATURE = Feature(...) is in the table
ewe.config.feature_table. The other modules are parts of a feature: for example, static.py imports indexes.py when
it first lists a directory.
"""
