"""Perl scripts under each isolation but "none" answer as `perl script` does, after any other script.

Scripts that load classes, settings and tables are asked in turn, each several times; the first answers come from a
process without modules, later ones from one that has loaded the modules before the request.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.engines import PATH, PERL, PERL_HEAD, answer_of_process, isolated, without_times
from support.proc import state
from support.server import wait_until
from support.xswitch_client import xswitch

from ewe.xswitch.tools.driver import Driver, ScriptResult

pytestmark = pytest.mark.starts_processes

VARIABLES = {"PATH": PATH, "REQUEST_METHOD": "GET", "QUERY_STRING": "n=4"}
ROUNDS = 3
isolations = pytest.mark.parametrize("isolation", ["auto", "fork"])

SCRIPTS = {  # %H: the head
    "Moose": "use strict; package Point; use Moose; has x => (is => 'rw', isa => 'Int', default => 3); "
    "__PACKAGE__->meta->make_immutable; package main; %H my $p = Point->new; $p->x($p->x + 1); print $p->x; "
    "eval { $p->x('a') }; print ref $@ || $@ =~ /Int/;",
    "Moose roles": "use strict; package Loud; use Moose::Role; requires 'name'; "
    "sub say_it { uc $_[0]->name } package Dog; use Moose; with 'Loud' if 1; sub name { 'rex' } package main; "
    "%H print Dog->new->can('say_it') ? 'loud' : 'mute';",
    "another Point": "use strict; package Point; use Moose; has y => (is => 'ro', default => 'why'); package main; "
    "%H print Point->new->y, Point->can('x') ? 'x' : 'no x'; print Point->meta->get_attribute_list;",
    "Moo": "use strict; package Point; use Moo; has x => (is => 'rw', default => sub { 5 }); package main; "
    "%H print Point->new->x, Point->can('y') ? 'y' : 'no y';",
    "Moo roles": "use strict; package Quiet; use Moo::Role; sub hush { 'sh' } package Cat; use Moo; with 'Quiet'; "
    "package main; %H print Cat->new->hush;",
    "Log4perl": "use strict; use Log::Log4perl qw(:easy); %H Log::Log4perl->init(\\'log4perl.logger = INFO, S\n"
    "log4perl.appender.S = Log::Log4perl::Appender::Screen\nlog4perl.appender.S.stderr = 0\n"
    "log4perl.appender.S.layout = SimpleLayout\n'); get_logger('a')->info('said'); get_logger('a')->debug('not');",
    "Log4perl, easy": "use strict; use Log::Log4perl qw(:easy); %H print Log::Log4perl->initialized ? 1 : 0; "
    "Log::Log4perl->easy_init({ level => $DEBUG, file => 'STDOUT', layout => '%m%n' }); DEBUG('careful');",
    "Dumper": "use strict; use Data::Dumper; %H print Dumper({ a => [1] });",
    "Dumper, set": "use strict; use Data::Dumper; $Data::Dumper::Indent = 0; $Data::Dumper::Terse = 1; %H "
    "print Dumper({ a => [1] });",
    "Dumper, set by name": "use Data::Dumper; ${'Data::Dumper::Indent'} = 0; %H print Dumper([1]);",
    "CGI": "use strict; use CGI qw(:standard); print header('text/x'), scalar(param('n')), escapeHTML('<');",
    "CGI, set": "use strict; use CGI; $CGI::POST_MAX = 5; $CGI::LIST_CONTEXT_WARN = 0; my $q = CGI->new; "
    "print $q->header, $q->param('n');",
    "CGI, no room": "use strict; use CGI; $CGI::POST_MAX = 0; my $q = CGI->new; print $q->header, $CGI::POST_MAX;",
    "CGI, room": "use strict; use CGI; my $q = CGI->new; print $q->header, $q->can('new') ? $CGI::POST_MAX : 0;",
    "CGI in a list": "use strict; use CGI; my $q = CGI->new; print $q->header, $q->param('n');",
    "CGI::Carp": "use strict; use CGI; use CGI::Carp qw(fatalsToBrowser); die 'seen';",
    "locale": "use strict; use POSIX qw(locale_h); %H print setlocale(LC_ALL), setlocale(LC_NUMERIC, 'C.UTF-8');",
    "wrapped": "use strict; use Text::Wrap qw(wrap $columns); $columns = 9; %H print wrap('', '', 'one two');",
    "not wrapped": "use strict; use Text::Wrap; %H print wrap('', '', 'a text of words');",
    "JSON": "use strict; use JSON::PP; %H print JSON::PP->new->canonical->pretty->encode({ a => [1, \\1] });",
    "cycle": "use strict; package D; sub new { bless {} } sub DESTROY { print 'gone' } package main; %H "
    "my $d = D->new; $d->{me} = $d;",
    "all phases": "use strict; BEGIN { %H } INIT { print 'init' } CHECK { print 'check' } END { print 'end' } "
    "print ${^GLOBAL_PHASE}, defined $^S ? $^S : 'undef', scalar(caller) // 'none', __FILE__ eq $0;",
    "returns": "%H return 5;",
    "own data": "use strict; %H print scalar <DATA>; print tell DATA; seek DATA, 0, 0; print scalar <DATA>;\n"
    "__END__\nfirst\nsecond\n",
    "modules": "use strict; use List::Util; %H print join ' ', grep { /List|Moose|CGI|Dumper/ } sort keys %INC;",
    "found later": "%H my $name = 'Text/Tabs.pm'; require $name; $Text::Tabs::tabstop = 2; print expand(qq(\\ta));",
    "found by text": "%H eval 'use Text::Tabs; $tabstop ||= 9'; print Text::Tabs::expand(qq(\\ta));",
    "warns": "#!/usr/bin/perl -w\n%H print $^W; my $u; print 'a' . $u;",
    "tainted": "#!/usr/bin/perl -T\n%H print ${^TAINT};",
    "marked": "\ufeff%H print 'marked';",
    "dies": "use strict; %H die 'mine';",
    "dies, with classes": "use strict; use Moose (); %H die 'mine';",
    "exits": "use strict; %H END { print $? } exit 7;",
    "random": "use strict; use List::Util 'shuffle'; %H my @l = map { int rand 1e9 } 1 .. 4; print scalar @l;",
    "inherits": "use CGI; @ISA = ('CGI'); %H print main->can('header') ? 1 : 0;",
    "inherits nothing": "use CGI; %H print main->can('header') ? 1 : 0, scalar @ISA;",
    "names of sort": "%H ($a, $b) = (5, 6); @a = (1); %b = (1, 2); print $a;",
    "names of sort, unset": "%H print $a // 'none', $b // 'none', scalar @a, scalar %b;",
    "reads what it is given": "%H @ARGV = ($0); my $line = <>; print length $line, $ARGV;",
    "is given nothing": "%H my $line = <>; print $line // 'none', $ARGV, $. // 'none';",
    "closes all": "%H print 'here'; close STDERR; close STDIN;",
    "perl's own": "%H $^O = 'mine'; print $^O;",
    "perl's own, unset": "%H print $^O;",
    "evaluates": "use Data::Dumper; %H my $t = '${\"Data::Dumper::Indent\"} = 0'; (my $x = 'x') =~ s/x/$t/ee; "
    "print $x;",
    "inherited": "use strict; package A; our @ISA; sub hi { 'A' } package B; our @ISA = 'A'; package main; %H "
    "print B->hi; @B::ISA = (); print eval { B->hi } // 'none';",
    "closes by number": "use strict; use POSIX (); %H print 'here'; POSIX::close($_) for 3 .. 255;",
    "duplicates": "use strict; use POSIX; %H print 'one'; dup2(1, 3); open my $copy, '>&=3'; print $copy 'two';",
    "rounds up": "use strict; use POSIX; %H POSIX::fesetround(POSIX::FE_UPWARD()); printf '%.25f', atan2 1, 3;",
    "rounds as usual": "use strict; %H printf '%.25f', atan2 1, 3;",
    "names its time zone": "use strict; use POSIX; %H print POSIX::tzname(); $ENV{TZ} = 'Asia/Tokyo'; "
    "POSIX::tzset();",
    "copies its output": "use strict; %H open my $copy, '>&', \\*STDOUT or die; print $copy 'copy'; close $copy; "
    "print 'rest';",
    "names its output": "use strict; %H open my $copy, '>-' or die; print $copy 'copy'; close $copy; print 'rest';",
    "names its input": "use strict; %H open my $copy, '-' or die; print scalar <$copy> // 'nothing';",
    "changes its directory": "use strict; use Cwd qw(chdir); %H chdir '..'; print $ENV{PWD}; Cwd::chdir('/'); "
    "print $ENV{PWD};",
    "a file that was looked at": "use strict; %H no warnings; print -s _ // 'none'; print -s $0;",
    "by a name from main": "use strict; use JSON::PP; %H print ::JSON::PP->new->encode([1]), "
    "main::JSON::PP::true();",
    "overloaded": "use strict; package N; use overload '+' => sub { 42 }; %H print bless([]) + 1;",
}


def answer_of_cgi(file: Path, variables: Mapping[str, str] = VARIABLES) -> ScriptResult:
    """Return the answer of a separate process."""
    first = file.read_bytes().partition(b"\n")[0]
    options = ["-T"] if first.endswith(b"-T") else []
    return without_times(answer_of_process(["perl"], file, variables, options=options))


def engine(isolation: str, **variables: str) -> Driver:
    """Return an engine with this isolation."""
    return Driver(PERL, {**isolated(isolation, lang=""), **variables})


def ask(running: Driver, file: Path, **variables: str) -> ScriptResult:
    """Have an engine run a script."""
    return without_times(running.ask(str(file), environment={**VARIABLES, **variables}, seconds=60))


def wait_for_modules(running: Driver, file: Path, **variables: str) -> None:
    """Ask for a script that prints getppid until it comes from another process than that without modules."""
    bare = file.with_name("bare.pl")
    bare.write_text("exec 'none' if 0; print getppid;")
    first = ask(running, bare).output
    wait_until(lambda: ask(running, file, **variables).output != first, 30)


@pytest.fixture(scope="module", params=range(4))
def part(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Path, ScriptResult]:
    """A quarter of the scripts, and what each of them says in a process of its own."""
    directory = tmp_path_factory.mktemp("scripts")
    length = len(SCRIPTS) // 4 + 1
    files = []
    for name, text in list(SCRIPTS.items())[request.param * length : (request.param + 1) * length]:
        files.append(directory / f"{name}.pl")
        files[-1].write_text(text.replace("%H", PERL_HEAD))
    return {file: answer_of_cgi(file) for file in files}


@pytest.mark.needs("Perl", "CGI.pm", "Log::Log4perl", "Moo", "Moose")
@isolations
def test_every_answer_is_that_of_a_process_of_its_own(part: dict[Path, ScriptResult], isolation: str) -> None:
    """In four parts, each with one engine; what one script may leave for another stands beside it."""
    assert all(answer.output for answer in part.values()), part
    order = random.Random(1)
    with engine(isolation) as running:
        for number in range(ROUNDS):
            for file in order.sample(list(part), len(part)):
                assert ask(running, file) == part[file], (number, file.name)


@pytest.mark.needs("Perl")
@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("use List::Util qw(sum); print List::Util::max(1), sum(1);", True),
        ("use Data::Dumper; print Dumper(1), Data::Dumper->Dump([1]);", True),
        ("use JSON::PP; print ::JSON::PP->new->encode([1]), main::JSON::PP::true();", True),
        ("use POSIX (); POSIX::close(200); print POSIX::floor(1);", False),
        ("use POSIX qw(close); close(200);", False),
        ("open my $copy, '>&=', 200;", False),
        ("my $number = 200; open my $copy, '>&=', $number;", False),
        ("open my $copy, '>&=' . (100 + 100);", False),
        ("my $mode = '>&='; open my $copy, $mode, 200;", False),
        ("use constant NUMBER => 200; open my $copy, '+<&=', NUMBER;", False),
        ("open my $copy, '<', '/dev/null'; $copy->fdopen(200, 'w');", False),
        ("use POSIX (); POSIX::write(200, 'x', 1);", False),
        ("use POSIX (); my $text; POSIX::read(200, $text, 1);", False),
        ("use POSIX; dup(200); lseek(200, 0, 0);", False),
        ("use POSIX (); POSIX->can('floor')->(1);", False),
        ("open my $copy, '>&', \\*STDOUT or die; close $copy;", True),
        ("open my $copy, '>&=', 2 or die;", True),
        ("my $text = '<b>&nbsp;'; $text =~ s/([>&\"'])/x/g; print $text =~ tr/>&\"//;", True),
        ("use List::Util; delete $::{'List::'} if 0;", False),
        ("::Symbol::delete_package('Data::Dumper') if 0;", False),
        ("overload::OVERLOAD('Data::Dumper') if 0;", False),
    ],
)
def test_a_script_whose_modules_are_known_runs_in_the_engine(tmp_path: Path, text: str, stays: bool) -> None:
    """The engine forks for a script that might reach its descriptors, or the modules that stay."""
    file = tmp_path / "script.pl"
    file.write_text(f"use strict; {PERL_HEAD} {text} print $$;")
    with engine("auto") as running:
        first, second = (ask(running, file) for _ in range(2))
        assert first.status == second.status == 0, first
        assert (first.output == second.output) == stays
        assert first.output.endswith(b"%d" % running.pid) == stays


@pytest.mark.needs("Perl")
@pytest.mark.parametrize("isolation", ["auto", "none"])
def test_output_to_a_name_that_is_a_hyphen_is_in_no_later_answer(tmp_path: Path, isolation: str) -> None:
    """The text does not show it: the engine ends, because perl keeps the output of its own handle in a buffer."""
    file = tmp_path / "script.pl"
    head = r'"Content-Type: text/plain\n\n"'
    file.write_text(
        f"use strict; my $name = '-'; open my $copy, \">$name\"; print $copy {head}, 'by the copy';"
    )
    with engine(isolation) as running:
        result = ask(running, file)
    assert result.output == answer_of_cgi(file).output and result.status is None


@pytest.mark.needs("Perl")
@pytest.mark.parametrize("name", ['a"quote.pl', "two\nlines.pl", "two\nBEGIN { print 'code' }\n.pl"])
def test_the_name_of_a_script_is_no_code(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(f"use strict; {PERL_HEAD} print __FILE__; die 'mine';")
    for isolation in ("auto", "fork"):
        with engine(isolation) as running:
            assert ask(running, file) == answer_of_cgi(file)
    with engine("none") as running:  # it shows another character in place of a quote or a line break
        shown = str(file).replace('"', "?").replace("\n", "?")
        assert ask(running, file).output.decode().endswith(f"\n\n{shown}")


@pytest.mark.needs("Perl")
@pytest.mark.parametrize("isolation", ["auto", "fork", "none"])
def test_a_brace_too_many_is_an_error_at_each_run(tmp_path: Path, isolation: str) -> None:
    """It is none between the braces of a sub, in which the engine compiles what it keeps."""
    file = tmp_path / "script.pl"
    file.write_text(f"use strict; {PERL_HEAD} print 'one'; }} {{ print 'two';")
    alone = answer_of_cgi(file)
    with engine(isolation) as running:
        for _ in range(3):
            result = ask(running, file)
            assert (result.output, result.status) == (alone.output, alone.status)
            assert b"Unmatched right curly bracket" in result.errors


@pytest.mark.needs("Perl")
@pytest.mark.parametrize("word", ["last", "next", "redo"])
@pytest.mark.parametrize("isolation", ["auto", "none"])
def test_a_word_of_loops_outside_of_a_loop_is_an_error(tmp_path: Path, isolation: str, word: str) -> None:
    """The engine itself runs a script in a block, which redo would run without an end."""
    file = tmp_path / "script.pl"
    file.write_text(f"use strict; {PERL_HEAD} print 'one'; {word}; print 'two';")
    alone = answer_of_cgi(file)
    with engine(isolation) as running:
        for _ in range(3):
            result = ask(running, file)
            assert (result.output, result.status) == (alone.output, alone.status)
            assert b"outside a loop block" in result.errors


@pytest.mark.needs("Perl")
@pytest.mark.parametrize("isolation", ["auto", "fork", "none"])
def test_a_signal_that_an_engine_ignores_from_its_start_stays_ignored(tmp_path: Path, isolation: str) -> None:
    """With `file-size`, this is SIGXFSZ: it would end a later script that writes too much."""
    file = tmp_path / "script.pl"
    file.write_text(f"use strict; {PERL_HEAD} print $SIG{{XFSZ}}; $SIG{{$_}} = 'DEFAULT' for qw(XFSZ USR1);")
    with Driver(PERL, isolated(isolation), lambda: ignore(signal.SIGXFSZ)) as running:
        for _ in range(3):
            assert ask(running, file).output.endswith(b"\n\nIGNORE")


def ignore(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)


@pytest.mark.needs("Perl", "Moo")
@isolations
def test_versions_of_a_module_and_edits(tmp_path: Path, isolation: str) -> None:
    """Each script finds the version in its own directory, as it is now, before any installed one."""
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "Shop.pm").write_text(f"package Shop; use Moo; sub name {{ '{place}' }} 1;")
        (tmp_path / f"{place}.pl").write_text(
            f"use strict; use lib '{tmp_path}/{place}'; use Shop; use Text::Wrap; {PERL_HEAD} "
            "print Shop->new->name, wrap('', '', 'text');"
        )
    parent = tmp_path / "parent.pl"
    parent.write_text(f"use strict; use lib '{tmp_path}/one'; use Shop; use Text::Wrap; print getppid;")
    with engine(isolation) as running:
        wait_for_modules(running, parent)
        for number in range(3):
            for place in ("one", "two"):
                file = tmp_path / f"{place}.pl"
                for _ in range(2):
                    assert ask(running, file) == answer_of_cgi(file)
                (tmp_path / place / "Shop.pm").write_text(
                    f"package Shop; use Moo; sub name {{ '{place} again, {number}' }} 1;"
                )
                assert ask(running, file) == answer_of_cgi(file)
        wait_for_modules(running, parent)
        (tmp_path / "one" / "Text").mkdir()
        own = tmp_path / "one" / "Text" / "Wrap.pm"
        own.write_text("package Text::Wrap; sub import { *main::wrap = sub { 'mine' } } 1;")
        for _ in range(3):
            assert ask(running, tmp_path / "one.pl").output.endswith(b"mine")
            assert ask(running, tmp_path / "two.pl") == answer_of_cgi(tmp_path / "two.pl")
        own.unlink()
        assert ask(running, tmp_path / "one.pl") == answer_of_cgi(tmp_path / "one.pl")


@pytest.mark.parametrize(
    ("load", "shows"),
    [
        ("our $v = $ENV{MODE} // 'none';", "$Mine::v eq ($ENV{MODE} // 'none')"),
        ("our $v = exists $ENV{MODE};", "!!$Mine::v eq !!exists $ENV{MODE}"),
        ("our $v = join ',', sort keys %ENV;", "$Mine::v eq join ',', sort keys %ENV"),
        ("our $v = $$;", "$Mine::v == $$"),
        ("our $v = $0;", "$Mine::v eq $0"),
        ("our $v = $^T;", "$Mine::v == $^T"),
        ("our $v = time;", "$Mine::v >= $^T"),
        ('our $v = "@ARGV";', '$Mine::v eq "@ARGV"'),
        ("use Cwd; our $v = cwd();", "require Cwd && $Mine::v eq Cwd::cwd()"),
        ("our $v = rand;", '!-e "rand.$Mine::v" && open my $f, \'>\', "rand.$Mine::v"'),
        ("open our $v, '<', __FILE__; my $l = <$v>;", "tell($Mine::v) > 0 && seek $Mine::v, 0, 2"),
        ("our $v = fork // die; exit if !$v; wait;", "wait == -1"),
        ("$SIG{USR1} = sub { our $v = 1 };", "kill(USR1 => $$) && $Mine::v"),
    ],
)
def test_what_loading_finds_is_of_the_request(tmp_path: Path, load: str, shows: str) -> None:
    """An installed module that looks at the request or the process is loaded within each request that differs."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "Mine.pm").write_text(f"package Mine; {load} 1;\n")
    file = tmp_path / "uses.pl"
    file.write_text(
        f"use strict; use Text::Tabs; use Mine; {PERL_HEAD} print +({shows}) ? 'as new' : 'left';"
    )
    parent = tmp_path / "parent.pl"
    parent.write_text("use strict; use Text::Tabs; print getppid;")
    with engine("fork", PERL5LIB=str(library)) as running:
        for mode in ({}, {"MODE": "a"}, {"MODE": "b"}) * 4:
            assert ask(running, file, **mode).output.endswith(b"\n\nas new"), (
                mode,
                ask(running, file, **mode),
            )
            wait_for_modules(running, parent)  # by then what the first has asked for is there, too


@pytest.mark.parametrize(
    "reaches",
    [
        "alarm 1000;",
        "my $name = 'POSIX::al' . 'arm'; (\\&$name)->(1000);",
        "my $method = 'al' . 'arm'; 1000->${\\\"POSIX::$method\"};",
    ],
)
def test_a_timer_that_a_script_leaves_is_gone(tmp_path: Path, reaches: str) -> None:
    """The engine looks for timers only after scripts whose text may reach one, also by a name made at run time."""
    leaves, shows = tmp_path / "leaves.pl", tmp_path / "shows.pl"
    leaves.write_text(f"use strict; use POSIX; {PERL_HEAD} {reaches} print $$;")
    shows.write_text(f"use strict; {PERL_HEAD} print alarm(0), ' ', $$;")
    with engine("auto") as running:
        for _ in range(3):  # the second run is compiled for all later ones
            pid = ask(running, leaves).output.split()[-1]
            assert ask(running, shows).output.split()[-2:] == [b"0", pid], "both run in the engine's process"


def test_an_installed_module_that_changes_is_loaded_anew(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    module = library / "Mine.pm"
    module.write_text("package Mine; sub value { 'one' } 1;\n")
    os.utime(module, (1, 1))
    time.sleep(1.1)  # a file that changed within the second in which it is loaded is not preloaded
    file = tmp_path / "uses.pl"
    file.write_text("use strict; use Mine; print Mine::value();")
    parent = tmp_path / "parent.pl"
    parent.write_text("use strict; use Mine; print getppid;")
    with engine("fork", PERL5LIB=str(library)) as running:
        wait_for_modules(running, parent)
        assert ask(running, file).output == b"one"
        module.write_text("package Mine; sub value { 'other' } 1;\n")
        wait_until(lambda: ask(running, file).output == b"other", 20)


@isolations
def test_what_a_script_leaves_running_ends_its_engine(tmp_path: Path, isolation: str) -> None:
    file = tmp_path / "leaves.pl"
    file.write_text(f"$| = 1; {PERL_HEAD} my $p = fork; if (!$p) {{ close STDOUT; sleep 60 }} print $p;")
    well = tmp_path / "well.pl"
    well.write_text(f"$| = 1; {PERL_HEAD} if (!fork) {{ print 'child'; exit }} wait; print $?;")
    with engine(isolation) as running:
        assert ask(running, well).output.endswith(b"child0")
        answer = running.ask(str(file), environment=VARIABLES, seconds=70)
        assert answer.status is None
        os.kill(int(answer.output.split()[-1]), signal.SIGKILL)


@pytest.mark.parametrize("isolation", ["auto", "fork", "none"])
def test_output_waits_for_the_web_server_whatever_was_set(tmp_path: Path, isolation: str) -> None:
    """A script may have its output not wait. The descriptor is the same for all scripts."""
    hasty = tmp_path / "hasty.pl"
    hasty.write_text(
        f"use strict; use Fcntl; {PERL_HEAD} fcntl $_, F_SETFL, O_RDWR | O_NONBLOCK for *STDOUT, *STDERR;"
    )
    large = tmp_path / "large.pl"
    large.write_text(f"use strict; {PERL_HEAD} print 'x' x 4_000_000;")
    with engine(isolation) as running:
        for _ in range(3):
            ask(running, hasty)
            assert len(ask(running, large).output) > 4_000_000


def test_a_request_whose_zygote_is_killed_is_not_answered_whole(tmp_path: Path) -> None:
    file = tmp_path / "kills.pl"
    file.write_text(f"$| = 1; {PERL_HEAD} print 'half'; kill KILL => getppid;")
    with engine("fork") as running:
        assert ask(running, file).status is None
        status = os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        assert status is not None and status.si_code == os.CLD_KILLED


def test_a_zygote_that_is_killed_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "exact.pl"
    file.write_text(f"use strict; {PERL_HEAD} print 'well';")
    parent = tmp_path / "parent.pl"
    parent.write_text("exec 'none' if 0; print getppid;")
    with engine("auto") as running:
        for script in (parent, file, parent):
            first = int(ask(running, parent).output)
            os.kill(first, signal.SIGKILL)
            wait_until(lambda first=first: state(first) == "Z", 20)
            answer = ask(running, script)
            assert answer.status == 0
            assert int(ask(running, parent).output) != first


def test_a_body_whose_process_cannot_be_forked_is_not_the_next_ones(tmp_path: Path) -> None:
    """As at the user's limit of processes. No process has read the body, so its engine ends."""
    (tmp_path / "Barren.pm").write_text(
        "package Barren; BEGIN { *CORE::GLOBAL::fork = sub () "
        f"{{ $0 =~ /zygote/ && -e '{tmp_path}/full' ? undef : CORE::fork() }} }} 1;"
    )
    file = tmp_path / "echo.pl"
    file.write_text(f"{PERL_HEAD} print <STDIN>;")
    with engine("fork", PERL5OPT="-MBarren", PERL5LIB=str(tmp_path)) as running:
        assert running.ask(str(file), body=b"mine", seconds=60).output.endswith(b"mine")
        (tmp_path / "full").touch()
        answer = running.ask(str(file), body=b"left", seconds=60)
        assert answer.output == b"" and answer.status is None and b"cannot fork" in answer.errors


def test_a_zygote_that_cannot_be_forked_costs_no_answer(tmp_path: Path) -> None:
    """As at the user's limit of processes. The zygote without modules answers, as it did the first time."""
    (tmp_path / "Barren.pm").write_text(
        "package Barren; BEGIN { *CORE::GLOBAL::fork = sub () "
        f"{{ $0 !~ /zygote/ && -e '{tmp_path}/full' ? undef : CORE::fork() }} }} 1;"
    )
    file = tmp_path / "text.pl"
    file.write_text(f"use Text::Tabs; {PERL_HEAD} print expand('x');")
    with engine("fork", PERL5OPT="-MBarren", PERL5LIB=str(tmp_path)) as running:
        answer = running.ask(str(file), seconds=60)
        (tmp_path / "full").touch()
        assert answer.status == 0 and answer.output.endswith(b"x")
        assert running.ask(str(file), seconds=60) == answer


@isolations
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGFPE], ids=["KILL", "FPE"])
def test_a_signal_that_ends_a_script_ends_its_engine(tmp_path: Path, isolation: str, number: int) -> None:
    """Otherwise half an answer would look complete. perl ignores SIGFPE; the programs that it runs do not."""
    file = tmp_path / "killed.pl"
    file.write_text(f"$| = 1; package P; {PERL_HEAD} exec 'sh', '-c', 'kill -{number} $$; sleep 60';")
    with engine(isolation) as running:
        assert ask(running, file).status is None
        status = os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        assert status is not None and (status.si_code, status.si_status) == (os.CLD_KILLED, number)


@pytest.mark.needs("Perl", "CGI.pm", "Moo", "Moose")
@pytest.mark.parametrize("preload", ["true", "false"])
def test_all_of_it_behind_x_switch(preload: str) -> None:
    """Answers of several engines at once, and after the setting has changed."""
    with xswitch(f"preload = {preload}") as running:
        scripts = {
            name: running.script(f"{number}.pl", SCRIPTS[name].replace("%H", PERL_HEAD))
            for number, name in enumerate(("Moose", "another Point", "Moo", "Dumper", "Dumper, set", "CGI"))
        }
        wanted = {name: answer_of_cgi(Path(file)).output for name, file in scripts.items()}
        for number in range(3):
            for name, file in scripts.items():
                waiting = [running.asking(file, QUERY_STRING="n=4") for _ in range(2)]
                for reply in waiting:
                    assert wanted[name].endswith(reply().text.encode()), (number, name, running.log())
