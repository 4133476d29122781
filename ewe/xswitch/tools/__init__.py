"""Programs for engines: a driver, the checker's scripts, the builds of the Java engine and of LibCGI's host."""
