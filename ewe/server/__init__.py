"""One process or many: opens the sockets, gives up privileges, runs a processor, keeps workers alive."""
