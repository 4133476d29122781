"""What stands behind a feature: the variables and output of CGI programs, FastCGI records, processes, servers."""
