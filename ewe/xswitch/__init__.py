"""X-Switch: persistent engines that run unmodified CGI scripts as their owners.

After "X-Switch: An Efficient, Multi-User, Multi-Language Web Application Server" (SACJ 44, 2010). There are three
processes. The supervisor opens the sockets, and starts the other two again when they fail. suexecme (privileged/)
keeps the privilege to start an engine as a user, and reads no network. The main process (switch/) speaks FastCGI
with web servers and the engine protocol with engines, without privileges. docs/xswitch.md leads through them; the
first files to read are switch/main.py and privileged/suexecme.py.
"""
