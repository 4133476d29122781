"""Experiments: load, measure, compare. Linux only; nothing of the server leans on it."""
