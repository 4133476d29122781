"""X-Switch: persistent engines that run unmodified CGI scripts as their owners.

After "X-Switch: An Efficient, Multi-User, Multi-Language Web Application Server" (SACJ 44, 2010). Three
processes: `supervisor` opens the sockets and starts the other two anew when they fail; `suexecme` keeps the
privilege to start an engine as a user, and reads no network; `main` speaks FastCGI with web servers and the
engine protocol with engines, without privileges. docs/xswitch.md leads through it.
"""
