"""Programs around engines: a driver, the checker's scripts, the build of the Java engine."""
