"""Who runs a conversation, and when: one file a concurrency model."""
