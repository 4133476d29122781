"""LibCGI's C part: the header for compiling a library, and the shim that calls libraries."""
