-- The tables of the blog, for SQLite: sqlite3 blog.db ".read schema.sql"
CREATE TABLE posts (
  id INTEGER PRIMARY KEY,
  title TEXT NOT NULL CHECK (length(title) BETWEEN 1 AND 200),
  author TEXT NOT NULL CHECK (length(author) BETWEEN 1 AND 80),
  written TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  body TEXT NOT NULL CHECK (length(body) BETWEEN 1 AND 50000)
);
CREATE INDEX posts_by_date ON posts (written DESC, id DESC);
CREATE TABLE comments (
  id INTEGER PRIMARY KEY,
  post INTEGER NOT NULL REFERENCES posts (id),
  author TEXT NOT NULL CHECK (length(author) BETWEEN 1 AND 80),
  written TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
  body TEXT NOT NULL CHECK (length(body) BETWEEN 1 AND 5000)
);
CREATE INDEX comments_of_post ON comments (post, id);
