#!/bin/sh
# The smallest CGI program in the shell: header fields, an empty line, the body.

printf 'Content-Type: text/plain; charset=utf-8\n'
printf '\n'
if [ "$REQUEST_METHOD" != HEAD ]; then  # HEAD asks for the header fields alone
    printf 'Hello from the shell!\n'
fi
