"""Reports of results: a table for the terminal, an HTML page with charts, sentences for students."""
