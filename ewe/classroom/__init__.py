"""The classroom: what a course needs around ewe. It grades servers, and it explores the races of threads."""
