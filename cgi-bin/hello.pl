#!/usr/bin/env perl
# The smallest CGI program in Perl: header fields, an empty line, the body.
use strict;
use warnings;

print "Content-Type: text/plain; charset=utf-8\n";
print "\n";
if (($ENV{REQUEST_METHOD} // '') ne 'HEAD') {    # HEAD asks for the header fields alone
    print "Hello from Perl!\n";
}
