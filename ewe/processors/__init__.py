"""Concurrency models: which process or thread runs a conversation, and when. One file for each model."""
