# The Perl engine of X-Switch: runs CGI scripts that do not know of it, one after another, in one interpreter.
#
# It speaks the engine protocol (docs/write-an-engine.md): two lines come on the control socket, descriptor 3;
# the request's body comes and the script's output goes over the data socket, descriptors 0 and 1 at the start;
# after the output a mark goes back over the control socket. Where a script leaves processes behind, the engine
# ends instead, as a CGI script's process would.
#
# What it keeps of one script for the next, and how it forgets the rest, is in perl_state.pl.

package XSwitch;

use strict;
use warnings;
BEGIN { *CORE::GLOBAL::exit = \&leave }    # before any code is compiled that may call it
use POSIX ();

my $here = (__FILE__ =~ m{\A/} ? '' : './') . __FILE__ =~ s{[^/]*\z}{}r;
require "${here}perl_state.pl";
delete $INC{"${here}perl_state.pl"};

my ($CONTROL, $DATA, $NOTHING, $ERRORS, $FIRST_FREE) = (3 .. 7);
my $PIPE = 65536;    # bytes that a pipe holds: a body up to this size needs no file

my ($engine, $status, $leaving);
my ($control, $data, @handles, %environment);
my $seeds = '';

# ----------------------------------------------------------------------------- the conversation with X-Switch

sub main {
    my ($lines) = @_;
    while ($lines ||= receive_lines()) {
        start_anew($lines) if XSwitch::State::libraries_changed();
        my ($command, $variables) = split /\n/, $lines;
        my ($file, @arguments) = words($command);
        @ARGV = @arguments;
        %ENV = map { split /=/, $_, 2 } words($variables);
        prepare($file);
        run($file);
        finish();
        POSIX::_exit($status) unless alone();
        syswrite $control, "\4$status\n";
        XSwitch::State::forget($FIRST_FREE);
        $lines = '';
    }
}

sub receive_lines {
    my $lines = '';
    while (($lines =~ tr/\n//) < 2) {
        sysread($control, $lines, 1 << 18, length $lines) or return '';
    }
    return $lines;
}

sub words {
    my @words = split /\t/, $_[0] // '', -1;
    if (index($_[0] // '', '%') >= 0) { s/%([0-9A-Fa-f]{2})/chr hex $1/ge for @words }
    return @words;
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
}

# ------------------------------------------------------------- before a script: what a new process would have

sub prepare {
    my ($file) = @_;
    umask 022;
    chdir($file =~ s{[^/]*\z}{}r);
    close STDIN;
    open_input($ENV{CONTENT_LENGTH} || 0);
    POSIX::dup2($DATA, 1);
    POSIX::dup2($ERRORS, 2);
    open STDIN, '<&=', 0;
    open STDOUT, '>&=', 1;
    open STDERR, '>&=', 2 unless defined fileno STDERR;
    binmode STDERR;
    select STDOUT;
    ($|, $^, $~, $=, $-) = (0, 'STDOUT_TOP', 'STDOUT', 60, 0);
    ($/, $\, $,, $;, $", $@, $?, $^A) = ("\n", undef, undef, "\034", ' ', '', 0, '');
    $0 = $file if $0 ne $file;
    srand seed();
    FindBin::again() if $INC{'FindBin.pm'};
}

# As good as that of srand without an argument, which reads the kernel's random numbers one by one.
sub seed {
    if (length $seeds < 4 && open my $random, '<:raw', '/dev/urandom') { sysread $random, $seeds, 4096 }
    return unpack 'L', substr $seeds, 0, 4, '';
}

# The request's body becomes standard input, with an end, so that a script and its children may read to it.
sub open_input {
    my ($length) = @_;
    POSIX::dup2($NOTHING, 0);
    return unless $length;
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
    close $_ for $source, $sink;    # perl itself closes none that it has put where its STDIN or STDOUT was
}

# ----------------------------------------------------------------------------------------------- the script

sub run {
    my ($file) = @_;
    my $code = XSwitch::State::code_of($file);
    ($status, $leaving) = (0, 0);
    if ($code) { $! = 0; attempt($code) }
    else { print STDERR qq(Can't open perl script "$file": $!\n); $status = 2 }
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
        XSwitch::State::run_ends();
        CORE::exit($status);
    }
    no warnings 'exiting';
    last REQUEST;
}

# Run the END blocks, end what the script has left in variables, and write out all that was said.
sub finish {
    attempt(\&XSwitch::State::run_ends);
    attempt(\&XSwitch::State::forget_variables);
    close STDOUT;
}

# Have all processes that the script started ended?
sub alone {
    my $pid;
    do { $pid = waitpid -1, 1 } while $pid > 0;    # WNOHANG
    return $pid < 0;
}

# Replace this process by a fresh engine, which goes on with the request that was read.
sub start_anew {
    my ($lines) = @_;
    open my $kept, '+>', undef or die "temporary file: $!";
    syswrite $kept, $lines;
    sysseek $kept, 0, 0;
    fcntl $_, 2, 0 for $kept, $control;    # F_SETFD: programs inherit it
    POSIX::dup2(@$_) for [$DATA, 0], [$DATA, 1], [$ERRORS, 2];
    %ENV = %environment;
    exec $^X, __FILE__, fileno $kept or die "$^X: $!";
}

# Be an engine on the descriptors that X-Switch gives, to the end of this process.
sub serve {
    my ($kept) = @_;
    ($engine, %environment) = ($$, %ENV);
    my $lines = '';
    if ($kept && open my $source, '<&=', $kept) { sysread $source, $lines, 1 << 18 }
    settle();
    XSwitch::State::remember();
    main($lines);
    POSIX::_exit(0);
}

serve(@ARGV) unless caller;
1;
