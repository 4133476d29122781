"""The course: labs, handouts, packs for platforms, measurements and questions. cli.py is the command."""
