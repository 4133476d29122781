"""What is shown of results: a table for the terminal, the HTML page with its charts, sentences for students."""
