"""The server process: opens the sockets, gives up privileges, and runs processors in one process or in many."""
