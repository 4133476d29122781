"""What the tests share: servers, clients, streams in memory, made-up tables. No test stands here."""
