#!/usr/bin/env python3
# The smallest CGI program in Python: header fields, an empty line, the body.
import os

print("Content-Type: text/plain; charset=utf-8")
print()
if os.environ.get("REQUEST_METHOD") != "HEAD":  # HEAD asks for the header fields alone
    print("Hello from Python!")
