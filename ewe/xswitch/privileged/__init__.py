"""suexecme, the one process that may start engines as their users. Nothing here imports switch/.

Begin with suexecme.py; rules.py says which scripts may run, and as whom.
"""
