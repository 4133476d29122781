"""The main process, without privileges: one event loop between web servers and engines. Begin with main.py."""
