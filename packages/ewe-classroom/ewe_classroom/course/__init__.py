"""The course: labs, from one source each; handouts, packs, measurements and questions. The command is cli.py."""
