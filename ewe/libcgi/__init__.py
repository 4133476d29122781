"""LibCGI's part in C: the header that a library is compiled with, and the shim that calls it."""
