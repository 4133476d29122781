# The Perl engine of X-Switch: runs CGI scripts that do not know of it, one after another, in one interpreter.
#
# It speaks the engine protocol (docs/write-an-engine.md): two lines come on the control socket, descriptor 3;
# the request's body comes and the script's output goes over the data socket, descriptors 0 and 1 at the start;
# after the output a mark goes back over the control socket. Where a script leaves processes behind, the engine
# ends instead, as a CGI script's process would.

package XSwitch;

# Up here no variable of the engine is in sight of a script, and no pragma in force.
our ($file, $source);
sub evaluate { eval "package main;\n#line 1 \"$file\"\n$source"; die $@ if $@ }
sub compile {
    delete $XSwitch::{script};
    return eval "package main; sub XSwitch::script {\n#line 1 \"$file\"\n$source\n} \\&XSwitch::script";
}

use strict;
use warnings;
use B ();
use POSIX ();

my ($CONTROL, $DATA, $NOTHING, $ERRORS, $FIRST_FREE) = (3 .. 7);
my $PIPE = 65536;          # bytes that a pipe holds: a body up to this size needs no file
my $MAX_SCRIPTS = 500;     # scripts whose compiled form is kept
my $CLOSE_RANGE = 436;     # close_range(2)

# Words of a script that may leave something behind for the next request
my $UNSURE = qr/
    \b(?:our|state|package|vars|English|Env|Carp|BEGIN|UNITCHECK|CHECK|INIT|END|format|__DATA__|__WARN__)\b
    | __END__ | \$(?:main)?:: | \A\#!.*perl.*\s-\w*w
/x;
my %scripts;               # file -> what is known of it while it is unchanged
my @module_ends;           # END blocks of modules that stay
my ($engine, $status, $leaving) = ($$, 0, 0);
my ($control, $data);
my (%main_names, %packages, @libraries, @handles);

BEGIN { *CORE::GLOBAL::exit = \&leave }

# ----------------------------------------------------------------------------- the conversation with X-Switch

sub main {
    while (my $lines = receive_lines()) {
        my ($command, $variables) = map {
            [map { s/%([0-9A-Fa-f]{2})/chr hex $1/ger } split /\t/, $_, -1]
        } split /\n/, $lines, 3;
        ($file, @ARGV) = @$command;
        %ENV = map { split /=/, $_, 2 } @$variables;
        prepare();
        run();
        finish();
        POSIX::_exit($status) unless alone();
        syswrite $control, "\4$status\n";
        forget();
    }
}

sub receive_lines {
    my $lines = '';
    while (($lines =~ tr/\n//) < 2) {
        sysread($control, $lines, 1 << 18, length $lines) or return '';
    }
    return $lines;
}

# Our descriptors go where no script looks for them, and no program inherits them.
sub settle {
    open my $nothing, '+<', '/dev/null' or die "/dev/null: $!";
    POSIX::dup2(fileno $nothing, $NOTHING);
    close $nothing if fileno $nothing != $NOTHING;
    POSIX::dup2(0, $DATA);
    POSIX::dup2(2, $ERRORS);
    open $control, '+<&=', $CONTROL or die "control socket: $!";
    open $data, '+<&=', $DATA or die "data socket: $!";
    for ($CONTROL .. $ERRORS) {
        open my $handle, '+<&=', $_ or next;
        fcntl $handle, 2, 1;    # F_SETFD, FD_CLOEXEC
        push @handles, $handle;    # or it would be closed
    }
    select STDOUT;
}

# ------------------------------------------------------------- before a script: what a new process would have

sub prepare {
    umask 022;
    chdir($file =~ s{[^/]*\z}{}r);
    close STDIN; close STDOUT;
    open_input($ENV{CONTENT_LENGTH} || 0);
    POSIX::dup2($DATA, 1);
    POSIX::dup2($ERRORS, 2);
    open STDIN, '<&=', 0;
    open STDOUT, '>&=', 1;
    open STDERR, '>&=', 2 unless defined fileno STDERR;
    select STDOUT;
    $| = 0;
    ($0, $/, $\, $,, $;, $", $@, $!, $?, $^W) = ($file, "\n", undef, undef, "\034", ' ', '', 0, 0, 0);
    srand;
    FindBin::again() if $INC{'FindBin.pm'};
    if ($INC{'CGI.pm'}) { no warnings 'once'; undef $CGI::Q; CGI::initialize_globals() }
}

# The request's body becomes standard input, with an end, so that a script and its children may read to it.
sub open_input {
    my ($length) = @_;
    return POSIX::dup2($NOTHING, 0) unless $length;
    my ($source, $sink, $piece);
    if ($length <= $PIPE) { pipe $source, $sink or die "pipe: $!" }
    else { open $sink, '+>', undef or die "temporary file: $!"; $source = $sink }
    while ($length) {
        my $count = sysread $data, $piece, $length < $PIPE ? $length : $PIPE;
        POSIX::_exit(0) unless $count;    # whoever sent it has gone
        syswrite $sink, $piece;
        $length -= $count;
    }
    sysseek $source, 0, 0 if $source == $sink;
    POSIX::dup2(fileno $source, 0);
}

# ----------------------------------------------------------------------------------------------- the script

sub run {
    ($status, $leaving) = (0, 0);
    my $script = find() or return;
    if (defined $script->{data}) {
        no warnings 'once';
        open *main::DATA, '<', \$script->{data};
    }
    if ($script->{code}) {
        $main::{$_} = $script->{symbols}{$_} for keys %{ $script->{symbols} };
        attempt($script->{code});
        return;
    }
    $source = $script->{source};
    attempt(\&evaluate);
    compile_once($script) unless $script->{unsure};
}

# Call code as perl runs a file: exit and die end it, and set the status.
sub attempt {
    my ($code) = @_;
    REQUEST: {
        eval { local *_ = \@ARGV; &$code; 1 } and last;
        last if $leaving;    # exit, where perl could not leave at once
        my ($error, $number) = ($@, $! + 0);
        CGI::Carp::fatalsToBrowser($error) if $INC{'CGI/Carp.pm'} && ($SIG{__DIE__} // '') eq \&CGI::Carp::die;
        print STDERR $error;
        $status = $number || ($? >> 8) || 255;
    }
}

# What a script's exit does.
sub leave {
    $status = ($_[0] // 0) & 255;
    $leaving = 1;
    if ($$ != $engine) {    # in a child that it has forked
        run_ends();
        CORE::exit($status);
    }
    no warnings 'exiting';
    last REQUEST;
}

# Return what is known of the script; nothing, with a line on standard error, where it cannot be read.
sub find {
    my $signature = join ' ', (Time::HiRes::stat($file))[9, 7, 1];
    my $script = $scripts{$file};
    return $script if $script && $script->{signature} eq $signature;
    my $text = '';
    if (!open my $handle, '<', $file) {
        print STDERR qq(Can't open perl script "$file": $!\n);
        $status = 2;
        return;
    }
    else { 1 while sysread $handle, $text, 1 << 16, length $text }
    my $unsure = $text =~ $UNSURE || $text !~ /^\s*use\s+(?:strict|v?5\.0?[1-9][2-9])/m;
    my $rest;
    $rest = $1 // '' if $text =~ s/^__(?:END|DATA)__\r?$(?:\n(.*))?//ms;
    my @pods = $text =~ /^=([a-zA-Z]\w*)/mg;
    $text .= "\n\n=cut\n\n" if @pods && $pods[-1] ne 'cut';
    $text = "BEGIN { \$^W = 1 } $text" if $text =~ /\A#!.*perl.*\s-\w*w/;
    %scripts = () if keys %scripts >= $MAX_SCRIPTS;
    return $scripts{$file} = { signature => $signature, source => $text, data => $rest, unsure => $unsure };
}

# Keep a script compiled if the next request then finds all as fresh as this one did: if it has no global
# variables, no sub that holds on to a variable of one run, and no module that may change.
sub compile_once {
    my ($script) = @_;
    return if $script->{unsure} = grep { !is_library($_) } values %INC;
    delete @main::{ new_names() };
    my $warned = 0;
    my $watch = sub { $warned = 1 };
    local $SIG{__WARN__} = $watch;
    my $code;
    REQUEST: { $code = compile() }
    return $script->{unsure} = 1 if !$code || $warned || $SIG{__WARN__} ne $watch;
    for my $name (new_names()) {
        my $glob = $main::{$name};
        return $script->{unsure} = 1
            if ref \$glob eq 'GLOB' && (*{$glob}{HASH} || *{$glob}{ARRAY} || defined ${ *{$glob}{SCALAR} });
        $script->{symbols}{$name} = $glob;
    }
    $script->{code} = $code;
}

# ----------------------------------------------------------- after a script: what it has changed is as it was

# Run the END blocks, and write out all that was said.
sub finish {
    attempt(\&run_ends);
    close STDOUT;
}

sub run_ends {
    my $blocks = B::end_av();
    my @own;
    if ($blocks->isa('B::AV')) {
        for my $block ($blocks->ARRAY) {
            if (is_library($block->FILE)) { push @module_ends, $block->object_2svref }
            else { push @own, $block->object_2svref }
        }
        $#{ $blocks->object_2svref } = -1;
    }
    $_->() for @own, @module_ends;
}

# Have all processes that the script started ended?
sub alone {
    my $pid;
    do { $pid = waitpid -1, 1 } while $pid > 0;    # WNOHANG
    return $pid < 0;
}

sub forget {
    delete @main::{ new_names() };
    for my $key (grep { !is_library($INC{$_} // '') } keys %INC) {    # a module of the user's own
        my @path = split m{/}, $key =~ s/\.pm\z//r;
        my $stash = \%main::;
        while (@path > 1 && $stash) { my $glob = $stash->{ (shift @path) . '::' }; $stash = $glob && *{$glob}{HASH} }
        delete $stash->{"$path[0]::"} if $stash;
        delete $INC{$key};
    }
    my %loaded = map { (split m{/|\.pm\z})[0] . '::' => 1 } keys %INC;
    for (grep { /::\z/ && !$packages{$_} } keys %main::) {
        if ($loaded{$_}) { $packages{$_} = 1 }
        else { delete $main::{$_} }    # a package that the script itself has made
    }
    defined $SIG{$_} && delete $SIG{$_} for keys %SIG;
    delete @SIG{qw(__WARN__ __DIE__)};
    alarm 0;
    @INC = @libraries;
    syscall($CLOSE_RANGE, $FIRST_FREE, 0x7fffffff, 0) == 0 or POSIX::close($_) for $FIRST_FREE;
}

# Names in main:: that were not there before; what has no letters is perl's own.
sub new_names { return grep { !$main_names{$_} && /\A[A-Za-z_]\w*\z/ } keys %main:: }

# Is this a file of an installed module? Those stay.
sub is_library {
    my ($file) = @_;
    for (@libraries) { return 1 if index($file, "$_/") == 0 }
    return $file !~ m{/};
}

require Time::HiRes;
settle();
@libraries = grep { !ref && m{\A/} } @INC;
%packages = map { $_ => 1 } grep { /::\z/ } keys %main::;
%main_names = map { $_ => 1 } keys(%main::), qw(a b ARGVOUT);    # perl itself holds on to the last
main();
POSIX::_exit(0);
