"""suexecme, the only process that may start engines as their users. No module here imports switch/.

Begin with suexecme.py. rules.py decides which scripts may run, and as which user.
"""
