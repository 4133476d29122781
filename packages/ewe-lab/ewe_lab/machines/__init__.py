"""The other machines of a comparison: the target's machine, and the machines that send the load.

    agent.py      the program that runs on such a machine; it travels through ssh and needs Python only
    session.py    our end of the conversation with an agent, and the command line of ssh
    watch.py      the CPU time and memory of a target, read by an agent
    workers.py    locust's workers on other machines, and the master here

An agent kills its worker and ends when its standard input ends, or is silent for SILENCE_S. A lab that is killed
cannot clean up, but the kernel closes its pipes. ssh then ends the agent's input.
"""
