"""Settings: their names, their kinds of values, and the sources of the values."""
