"""Settings: what they are called, what they can be, and where their values come from."""
