"""Perl scripts in one engine, among others and again, say what they say in an engine of their own.

From the third request on a script may run from its compiled form: so each is asked five times, in two rounds.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ROOT

from ewe.xswitch.driver import Driver

PERL = ["perl", str(ROOT / "ewe" / "xswitch" / "engines" / "perl.pl")]
HEAD = 'print "Content-Type: text/plain\\n\\n";'
VARIABLES = {"REQUEST_METHOD": "GET", "QUERY_STRING": "n=4"}
with_cgi = subprocess.run(["perl", "-MCGI", "-e", "1"], capture_output=True).returncode == 0

SCRIPTS = {  # %H: the head
    # variables
    "our": "use strict; our ($n, @l, %h); %H print ++$n, push(@l, 1), $h{a}++ // 0;",
    "undeclared": "%H print ++$n, push(@l, 1), ++$h{a}; open F, '</dev/null' unless fileno F; print fileno F;",
    "main": "use strict; %H print ++$main::x, ++$::y;",
    "another package": "use strict; %H print ++$Other::x;",
    "symbolic": "%H $name = 'foo'; print ++$$name;",
    "name of a sub": "use strict; our $total; sub total { return ++$total } %H print total(), total();",
    "lexical of a sub": "use strict; my $n = 0; sub up { return ++$n } up(); %H print up();",
    "lexical of a sub, silent": "use strict; no warnings; my $n = 0; sub up { ++$n } up(); %H print up();",
    "lexical of a sub within": "use strict; my $n; sub up { return map { ++$n } 1 .. 2 } %H print up();",
    "local": "use strict; our $v; %H local $v = 3; show(); sub show { print $v; $v++ }",
    "state": "use strict; use feature 'state'; %H sub up { state $n = 5; ++$n } print up(), up();",
    "tied": "use strict; %H package T; sub TIESCALAR { bless [] } sub FETCH { 4 } package main; "
    "tie our $t, 'T'; print $t;",
    "blessed": "use strict; %H our @o; print ref \\@o; bless \\@o, 'Some';",
    "destroyed": "use strict; package D; sub new { bless [] } sub DESTROY { print 'gone' } package main; "
    "our $d = D->new; %H",
    # code
    "redefined": "use strict; sub g { 'a' } %H print g(); no warnings; *g = sub { 'b' }; print g();",
    "string eval": "use strict; our $x; %H print eval q($x = ($x // 0) + 1); eval 'sub late { 7 }'; print late();",
    "constants": "use strict; use constant { A => 3, B => [1, 2] }; %H print A, scalar @{+B};",
    "sort": "use strict; %H sub by { $a <=> $b } print sort by 3, 1, 2;",
    "pattern compiled once": "use strict; %H my $p = rand; print $p =~ /$p/o ? 1 : 0;",
    "flip-flop": "use strict; %H for (1, 2, 3) { if (/2/ .. /9/) { print } }",
    "handler": "use strict; %H our $n = 0; $SIG{USR1} = 'got'; sub got { $n++ } kill USR1 => $$; print $n;",
    "ends": "use strict; %H END { print 'end' } print 'x'; exit 3;",
    "dies": "use strict; %H die 'mine';",
    "dies with an object": "use strict; %H eval { die { code => 4 } }; print $@->{code};",
    "warnings": '#!/usr/bin/perl -w\nuse strict; %H print $^W; my $u; print "a" . $u;',
    # the process
    "mask": "use strict; use POSIX; my $old = POSIX::SigSet->new; %H "
    "sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGUSR1), $old); print $old->ismember(SIGUSR1);",
    "format": "use strict; %H print $^A, $~, $=; $~ = 'X'; $= = 5; $^A = 'q';",
    "layers": "use strict; binmode $_, ':utf8' for *STDOUT, *STDERR; %H print chr 233; warn chr(233) . qq(\\n)",
    "no layers": "use strict; %H print chr 233; warn chr(233) . qq(\\n)",
    "open": "use strict; use open qw(:std :utf8); %H print chr 233;",
    "lib": "use strict; use lib '/nowhere'; %H print $INC[0];",
    "name": "use strict; %H print length $0 > 5, \"@ARGV\"; $0 = 'changed'; @ARGV = (1);",
    "data": "use strict; %H my $l = <DATA>; print $l; our $k = 1;\n__DATA__\nfirst\nsecond\n",
    "no data": "use strict; %H no warnings; my $l = <DATA>; print $l // 'none'; warn 'here';",
    # modules
    "FindBin": "use strict; use FindBin qw($Bin); %H print length $Bin;",
    "POSIX": "use strict; use POSIX; %H print floor(1.5), strftime('%Y', gmtime 0);",
    "Data::Dumper": "use strict; use Data::Dumper; $Data::Dumper::Terse = 1; %H print Dumper([1]);",
    "CGI": "use strict; use CGI qw(:standard); print header('text/x'), scalar(param('n')), escapeHTML('<');",
    "CGI's pragmas": "use strict; use CGI qw(-no_xhtml :standard); print header, start_html, end_html;",
    "CGI's object": "use strict; use CGI; our $q = CGI->new; %H sub n { $q->param('n') . '!' } print n();",
    "CGI::Carp": "use strict; use CGI::Carp qw(fatalsToBrowser); die 'seen';",
    "dies without CGI::Carp": "use strict; %H die 'mine';",
}


def test_a_script_finds_nothing_of_another_or_of_itself(tmp_path: Path) -> None:
    files = {}
    for name, text in SCRIPTS.items():
        if with_cgi or "CGI" not in name:
            files[name] = tmp_path / f"{name}.pl".replace("/", "")
            files[name].write_text(text.replace("%H", HEAD))
    fresh = {}
    for name, file in files.items():
        with Driver(PERL) as engine:
            fresh[name] = engine.ask(str(file), environment=VARIABLES)
        assert fresh[name].output, (name, fresh[name])
    with Driver(PERL) as engine:
        for number in range(2):
            for name, file in files.items():
                for _ in range(5):
                    assert engine.ask(str(file), environment=VARIABLES) == fresh[name], (number, name)


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("my $x = 1;", True),
        ("our $x; $x = 1;", True),
        ("$x = 1; @x = (2); open X, '<', '/dev/null';", True),
        ("use strict; use POSIX; my $x = floor(1); sub one { return 1 }", True),
        ("my $x = 1; sub one { return $x }", False),
        ("eval '1'", False),
    ],
)
def test_what_stays_compiled(tmp_path: Path, text: str, stays: bool) -> None:
    """Whose caller is, then, a sub."""
    file = tmp_path / "usual.pl"
    file.write_text(f"{text}; {HEAD} print ((caller(0))[3]);")
    with Driver(PERL) as engine:
        said = [engine.ask(str(file)).output.rpartition(b"\n")[2] for _ in range(4)]
        assert said == [b"(eval)", *[b"XSwitch::State::script" if stays else b"(eval)"] * 3]
        file.write_text(f"{HEAD} print 'changed'")
        assert engine.ask(str(file)).output.endswith(b"changed")


def test_an_installed_module_that_changes_is_loaded_anew(tmp_path: Path) -> None:
    """By another program in the same process, which has the environment of the first and the request."""
    library = tmp_path / "library"
    library.mkdir()
    module = library / "Installed.pm"
    module.write_text("package Installed; our $loaded; sub value { return 'one' . ++$loaded } 1;\n")
    use = tmp_path / "use.pl"
    use.write_text(
        f"use strict; use Installed; {HEAD} print Installed::value(), ' ', <STDIN>, \" @ARGV $$\";"
    )
    with Driver(PERL, {**os.environ, "PERL5LIB": str(library)}) as engine:
        for count in (1, 2, 3):
            said = engine.ask(str(use), ["a b"], body=b"kept").output
            assert said.endswith(f"\n\none{count} kept a b {engine.pid}".encode())
        module.write_text("package Installed; sub value { return 'two' } 1;\n")
        time.sleep(1.1)
        answer = engine.ask(str(use), ["a b"], body=b"kept")
        assert answer.output.endswith(f"\n\ntwo kept a b {engine.pid}".encode()), answer
        assert engine.ask(str(use), ["c"]).output.endswith(f"\n\ntwo  c {engine.pid}".encode())


def test_uploads_are_let_go(tmp_path: Path) -> None:
    """The module keeps its handles until the next request; by then their descriptors are another's."""
    if not with_cgi:
        pytest.skip("no CGI.pm")
    file = tmp_path / "upload.pl"
    file.write_text(f"use strict; use CGI; my $f = CGI->new->upload('file'); {HEAD} print -s $f;")
    body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n123\r\n--B--\r\n'
    variables = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "multipart/form-data; boundary=B"}
    variables["TMPDIR"] = str(tmp_path)  # the driver may end the engine before it has removed its last file
    with Driver(PERL) as engine:
        for _ in range(4):
            answer = engine.ask(str(file), environment=variables, body=body)
            assert (answer.output[-1:], answer.errors) == (b"3", b"")
