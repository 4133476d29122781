"""Perl scripts in one engine, among others and again, say what they say in an engine of their own.

From the third request on a script may run from its compiled form: so each is asked five times there, in two rounds.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engines import PERL, PERL_HEAD, PatientDriver, isolated, without_times
from support.examples import examples
from support.resources import is_here

from ewe.xswitch.tools.driver import ScriptResult

pytestmark = pytest.mark.starts_processes

VARIABLES = {"REQUEST_METHOD": "GET", "QUERY_STRING": "n=4"}
with_cgi = is_here("CGI.pm")

SCRIPTS = {  # %H: the head
    # variables
    "our": "use strict; our ($n, @l, %h); %H print ++$n, push(@l, 1), $h{a}++ // 0;",
    "undeclared": "%H print ++$n, push(@l, 1), ++$h{a}; open F, '</dev/null' unless fileno F; "
    "print fileno F;",
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
    "string eval": "use strict; our $x; %H print eval q($x = ($x // 0) + 1); eval 'sub late { 7 }'; "
    "print late();",
    "constants": "use strict; use constant { A => 3, B => [1, 2] }; %H print A, scalar @{+B};",
    "sort": "use strict; %H sub by { $a <=> $b } print sort by 3, 1, 2;",
    "numeric flip-flop": "use strict; %H for (1 .. 9) { print if $_ == 2 .. $_ == 20 }",
    "flip-flop of an anonymous sub": "use strict; %H my $f = sub { $_[0] > 1 .. $_[0] > 9 }; "
    "print !!$f->($_) for 1 .. 3;",
    "not always declared": "use strict; no warnings; %H my $x = 1 if $ENV{NONE}; print ++$x; "
    "$ENV{NONE} && my $y; print ++$y;",
    "declaration jumped over": "%H goto OVER; my $x = 3; OVER: print ++$x;",
    "constant that is changed": "use strict; use constant { L => [1], H => { n => 1 } }; "
    "%H push @{+L}, 1; print @{+L}, H->{n}++;",
    "first file only": "use strict; %H my $f = glob '/etc/{passwd,group}'; print $f;",
    "question marks": "use strict; %H for (1 .. 3) { print if 'abc' =~ m ?b?; }",
    "place in a constant": "use strict; %H print $` if 'aXbX' =~ /X/g;",
    "replaced by reference": "use strict; %H sub g { 'a' } print g(); my $g = \\*g; no warnings; "
    "*$g = sub { 'b' }; print g();",
    "removed": "use strict; %H sub g { 'a' } print g(); undef &g; print defined &g;",
    "memoized": "use strict; use Memoize; our $n; sub g { ++$n } memoize('g'); %H print g(1), g(1), g(2);",
    "pattern compiled once": "use strict; %H my $p = rand; print $p =~ /$p/o ? 1 : 0;",
    "flip-flop": "use strict; %H for (1, 2, 3) { if (/2/ .. /9/) { print } }",
    "handler": "use strict; %H our $n = 0; $SIG{USR1} = 'got'; sub got { $n++ } kill USR1 => $$; print $n;",
    "ends": "use strict; %H END { print 'end' } print 'x'; exit 3;",
    "dies": "use strict; %H die 'mine';",
    "dies with an object": "use strict; %H eval { die { code => 4 } }; print $@->{code};",
    "warnings": '#!/usr/bin/perl -w\nuse strict; %H print $^W; my $u; print "a" . $u;',
    "not called": "%H main() unless caller; "
    "sub main { print scalar caller, (caller 0)[3], scalar(my @c = caller 1) }",
    "handles its death": "use strict; %H $SIG{__DIE__} = sub { print 'handled' }; die 'mine';",
    "dies within and without": "use strict; %H $SIG{__DIE__} = sub { print $^S }; eval { die 'a' }; die 'mine';",
    "exits as it dies": "use strict; %H $SIG{__DIE__} = sub { print 'handled'; exit 0 }; die 'mine';",
    "status at the end": "use strict; %H END { print $?; $? = 5 } END { print $?; exit 4 } exit 3;",
    "evaluated end": "use strict; %H eval q(END { print 'end' }); eval { exit };",
    "dies after a system call": "use strict; %H system '/none'; $! = 0; die 'mine';",
    # the process
    "mask": "use strict; use POSIX; my $old = POSIX::SigSet->new; %H "
    "sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGUSR1), $old); print $old->ismember(SIGUSR1);",
    "page": "%H our $v = 3; write;\nformat STDOUT_TOP =\ntop\n.\nformat STDOUT =\n@<<\n$v\n.\n",
    "no page": "%H our $v = 4; write;\nformat STDOUT =\n@<<\n$v\n.\n",
    "time": "use strict; %H print time - $^T < 60, defined $. ? 1 : 0, defined $& ? 1 : 0; $^T = 0; "
    "$_ = <STDIN>; $_ = 1",
    "tied handles": "package T; sub TIEHANDLE { bless [] } sub PRINT { 1 } package main; "
    "%H tie *STDOUT, 'T'; tie *STDIN, 'T'; print 'x';",
    "tied variables": "package T; "
    "sub TIEHASH { bless [] } sub TIESCALAR { bless [] } sub FETCH { 'F' } sub STORE { } "
    "package main; %H tie %ENV, 'T'; tie $,, 'T'; print 'a', $ENV{A};",
    "another handle": "%H $| = 1; print 'x'; *STDOUT = *STDERR;",
    "errors in memory": "use strict; %H close STDERR; open STDERR, '>', \\my $said; warn 'w'; "
    "print length $said > 1;",
    "perl's functions": "BEGIN { *CORE::GLOBAL::time = sub { 5 }; "
    "*CORE::GLOBAL::exit = sub { CORE::exit(2) } } %H print time; exit 1;",
    "locale": "use strict; use POSIX; %H print setlocale(LC_ALL); setlocale(LC_ALL, 'POSIX');",
    "last words of a package": "%H package P; our $o = bless []; sub DESTROY { print 'gone' }",
    "lines of another system": "%H print 'a\r\nb';\r\n",
    "format": "use strict; %H print $^A, $~, $=; $~ = 'X'; $= = 5; $^A = 'q';",
    "layers": "use strict; binmode $_, ':utf8' for *STDOUT, *STDERR; %H print chr 233; "
    "warn chr(233) . qq(\\n)",
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
    "CGI without what it loads late": "use strict; use CGI; print CGI->new->header('text/x');",
    "CGI with it": "use strict; use CGI; my $q = CGI->new; "
    "print $q->header, $q->start_html('<'), $q->escapeHTML('<');",
    "Carp": "use strict; use Carp; %H sub g { carp 'careful' } g(1); sub h { Carp::cluck 'here' } h(2); "
    "croak 'mine';",
    "CGI's pragmas": "use strict; use CGI qw(-no_xhtml :standard); print header, start_html, end_html;",
    "CGI's object": "use strict; use CGI; our $q = CGI->new; %H sub n { $q->param('n') . '!' } print n();",
    "CGI::Carp": "use strict; use CGI::Carp qw(fatalsToBrowser); die 'seen';",
    "dies without CGI::Carp": "use strict; %H die 'mine';",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The scripts, in files of a directory that all tests of them share."""
    directory = tmp_path_factory.mktemp("scripts")
    made = {}
    for name, text in SCRIPTS.items():
        if with_cgi or "CGI" not in name:
            made[name] = directory / f"{name}.pl".replace("/", "")
            made[name].write_text(text.replace("%H", PERL_HEAD))
    return made


@pytest.fixture(scope="module")
def fresh(files: dict[str, Path]) -> Callable[[str, str], ScriptResult]:
    """Return a function that says what a script answers in an engine of its own, with an isolation."""

    @functools.cache
    def answer(name: str, isolation: str) -> ScriptResult:
        with PatientDriver(PERL, isolated(isolation, lang="")) as engine:
            said = without_times(engine.ask(str(files[name]), environment=VARIABLES))
        assert said.output, (name, said)
        return said

    return answer


@pytest.mark.parametrize("isolation", ["none", "auto", "fork"])
def test_a_script_finds_nothing_of_another_or_of_itself(
    files: dict[str, Path], fresh: Callable[[str, str], ScriptResult], isolation: str
) -> None:
    """Only if scripts share a process, a compiled form exists that a third request may use.

    Nearly all scripts answer alike under each isolation: one engine for each of them is started for all three.
    """
    times = examples(5, 3) if isolation == "none" else 2 if isolation == "auto" else 1
    variables = isolated(isolation, lang="")
    engine = PatientDriver(PERL, variables)
    for number in range(2):
        for name, file in files.items():
            for _ in range(times):
                answer = without_times(engine.ask(str(file), environment=VARIABLES))
                if answer != fresh(name, "none"):  # another descriptor may be the first free one
                    assert answer == fresh(name, isolation), (number, name)
                if answer.status is None:  # it has ended, as the script's own process would
                    engine.close()
                    engine = PatientDriver(PERL, variables)
    engine.close()


def test_a_forked_child_does_not_answer(tmp_path: Path) -> None:
    """Also if the child dies, or comes to the script's end, and would then run code of the engine."""
    file = tmp_path / "fork.pl"
    with PatientDriver(PERL) as engine:
        for last in ("die 'mine'", "print 'child'", "exit 3"):
            file.write_text(f"$| = 1; {PERL_HEAD} if (!fork) {{ {last} }} else {{ wait; print $? >> 8 }}")
            for _ in range(3):
                answer = engine.ask(str(file))
                assert (answer.status, answer.output.rpartition(b"\n")[2]) == (
                    0,
                    {"d": b"255", "p": b"child0", "e": b"3"}[last[0]],
                )


def test_a_script_that_cannot_be_opened_has_perls_reason(tmp_path: Path) -> None:
    """The reason is the system's, and not that of what the engine did after it."""
    loop = tmp_path / "loop.pl"
    loop.symlink_to(loop)
    reason = b'Can\'t open perl script "%s": Too many levels of symbolic links\n' % os.fsencode(loop)
    with PatientDriver(PERL) as engine:
        for _ in range(2):
            answer = engine.ask(str(loop))
            assert (answer.status, answer.errors) == (2, reason)


def test_a_body_ends_whatever_came_before(tmp_path: Path) -> None:
    files = {
        "read.pl": f"{PERL_HEAD} print <STDIN>;",
        "not.pl": f"{PERL_HEAD} print 'no';",
        "cycle.pl": f"my $h = {{}}; $h->{{me}} = $h; open $h->{{f}}, '<', $0; {PERL_HEAD} print 'no';",
        "handles.pl": f"{PERL_HEAD} opendir D, '.'; open F, '<', $0; open my $f, '>', '/dev/null'; select $f;",
        "pipe.pl": f"$| = 1; {PERL_HEAD} open my $p, '|-', 'cat'; print $p 'through'; close $p;",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    order = [("not", b""), ("read", b"two"), ("not", b"left"), ("read", b"two\nthree"), ("read", b"one")]
    with PatientDriver(PERL) as engine:
        for name, body in order * 2:
            answer = engine.ask(str(tmp_path / f"{name}.pl"), body=body, seconds=30)
            said = answer.output.partition(b"\n\n")[2]
            assert (said, answer.errors) == (b"no" if name == "not" else body, b"")
    with PatientDriver(PERL) as engine:
        for _ in range(3):
            assert engine.ask(str(tmp_path / "handles.pl")).status == 0
        assert engine.ask(str(tmp_path / "pipe.pl"), seconds=30).output.endswith(b"through")
        # a handle that nobody can reach keeps its descriptor: the engine ends after that answer
        assert engine.ask(str(tmp_path / "cycle.pl"), seconds=30).status is None


def test_a_module_beside_the_script_by_a_relative_path(tmp_path: Path) -> None:
    use = tmp_path / "use.pl"
    use.write_text(f"use lib '.'; use Own; {PERL_HEAD} print Own::up();")
    with PatientDriver(PERL) as engine:
        for value in ("one", "six"):
            (tmp_path / "Own.pm").write_text(
                f"package Own; my $n = '{value}'; our $o = bless []; sub up {{ our $m; $n . ++$m }}"
                "END { print 'end' } sub DESTROY { print 'gone' } 1;"
            )
            for _ in range(2):
                assert engine.ask(str(use)).output.endswith(f"\n\n{value}1endgone".encode())


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("my $x = 1;", True),
        ("our $x; $x = 1;", True),
        ("$x = 1; @x = (2); open X, '<', '/dev/null';", True),
        ("use strict; use POSIX; my $x = floor(1); sub one { return 1 }", True),
        (
            "my @l = map { $_ } 1 .. @ARGV; my ($f) = glob '*'; while (my $l = shift @l) { my $m = $l if $l; }",
            False,
        ),
        ("my @l = map { $_ } 1 .. @ARGV; my ($f) = glob '*'; if (my $l = shift @l) { my $m = $l }", True),
        (
            "use constant { A => 1, B => 'b' }; my $x = A || B; local *F; sub one { my $s = sub { $x } if 0 }",
            False,
        ),
        ("use constant { A => 1, B => 'b' }; my $x = sub { A || B }; local *F; eval { die 1 } or 1;", True),
        ("my $x = 1; sub one { return $x }", False),
        ("eval '1'", False),
    ],
)
def test_what_stays_compiled(tmp_path: Path, text: str, stays: bool) -> None:
    """If the script stays compiled, its caller is a sub."""
    file = tmp_path / "usual.pl"
    file.write_text(f"{text}; {PERL_HEAD} print ((CORE::caller(0))[3]);")
    with PatientDriver(PERL, isolated("none", lang="")) as engine:
        said = [engine.ask(str(file)).output.rpartition(b"\n")[2] for _ in range(4)]
        assert said == [b"(eval)", *[b"XSwitch::State::script" if stays else b"(eval)"] * 3]
        file.write_text(f"{PERL_HEAD} print 'changed'")
        assert engine.ask(str(file)).output.endswith(b"changed")


def test_a_script_whose_first_run_fails_stays_compiled(tmp_path: Path) -> None:
    """Its database may be down for a moment; only a script that cannot be compiled is compiled at each request."""
    file = tmp_path / "fails.pl"
    file.write_text(f"use strict; {PERL_HEAD} die 'down' if $ENV{{DOWN}}; print ((CORE::caller(0))[3]);")
    with PatientDriver(PERL, isolated("none", lang="")) as engine:
        assert engine.ask(str(file), environment={"DOWN": "1"}).errors.startswith(b"down at ")
        for _ in range(2):
            assert engine.ask(str(file)).output.endswith(b"XSwitch::State::script")


def test_an_installed_module_that_changes_is_loaded_anew(tmp_path: Path) -> None:
    """The next program in the same process loads it, with the environment of the first one and the request."""
    library = tmp_path / "library"
    library.mkdir()
    module = library / "Installed.pm"
    module.write_text("package Installed; our $loaded; sub value { return 'one' . ++$loaded } 1;\n")
    use = tmp_path / "use.pl"
    use.write_text(
        f"use strict; use Installed; {PERL_HEAD} print Installed::value(), ' ', <STDIN>, \" @ARGV $$\";"
    )
    with PatientDriver(PERL, {**isolated("none", lang=""), "PERL5LIB": str(library)}) as engine:
        for count in (1, 2, 3):
            said = engine.ask(str(use), ["a b"], body=b"kept").output
            assert said.endswith(f"\n\none{count} kept a b {engine.pid}".encode())
        module.write_text("package Installed; sub value { return 'two' } 1;\n")
        time.sleep(1.1)
        answer = engine.ask(str(use), ["a b"], body=b"kept")
        assert answer.output.endswith(f"\n\ntwo kept a b {engine.pid}".encode()), answer
        assert engine.ask(str(use), ["c"]).output.endswith(f"\n\ntwo  c {engine.pid}".encode())


@pytest.mark.needs("CGI.pm")
def test_uploads_are_let_go(tmp_path: Path) -> None:
    """The module keeps its handles until the next request; by then their descriptors are another's."""
    file = tmp_path / "upload.pl"
    file.write_text(f"use strict; use CGI; my $f = CGI->new->upload('file'); {PERL_HEAD} print -s $f;")
    body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n123\r\n--B--\r\n'
    variables = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "multipart/form-data; boundary=B"}
    variables["TMPDIR"] = str(tmp_path)  # the driver may end the engine before it has removed its last file
    with PatientDriver(PERL) as engine:
        for _ in range(4):
            answer = engine.ask(str(file), environment=variables, body=body)
            assert (answer.output[-1:], answer.errors) == (b"3", b"")
