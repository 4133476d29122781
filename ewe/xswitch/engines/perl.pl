# The Perl engine of X-Switch: runs unmodified CGI scripts, one after another, in one interpreter.
#
# It speaks the engine protocol (docs/xswitch-internals.md). Two lines come on the control socket, descriptor 3. The
# request's body comes and the script's output goes over the data socket, descriptors 0 and 1 at the start. After
# the output a mark goes back over the control socket. If a script leaves processes behind, the engine ends instead,
# as a CGI script's process would.
#
# The setting `isolation` decides where a script runs: in this process ("none"); in a new one, forked from a zygote
# (perl_fork.pl: "fork"); or in this one if the script leaves no trace for the next one (perl_exact.pl: "auto").
# perl_state.pl keeps some state of one script for the next, and resets the rest. perl_code.pl decides which
# compiled code can be kept.

package XSwitch;

use strict;
use warnings;
BEGIN { *CORE::GLOBAL::exit = \&exit_script }    # before any code is compiled that may call exit
use POSIX ();

my $here = do { (__FILE__ =~ m{\A/} ? '' : './') . __FILE__ =~ s{[^/]*\z}{}r };    # the block hides $& from scripts
for my $part (map { "perl_$_.pl" } qw(protocol code state exact fork)) {
    require "$here$part";
    delete $INC{"$here$part"};
}

my ($CONTROL, $DATA, $NOTHING, $ERRORS) = (3 .. 6);
my ($FIRST_LINK, $FIRST_FREE) = XSwitch::Fork::link_descriptors();    # descriptors to zygotes

my ($engine, $status, $isolation);
my $has_exited;    # the code that run_code() has called last has called exit
my ($control, $data, $output, @handles, %environment);
my ($standard, $written);    # perl's own handle for descriptor 1, and the bytes that were written to it
my $seeds = '';

# ----------------------------------------------------------------------------- the conversation with X-Switch

sub main {
    my ($lines) = @_;
    while ($lines ||= receive_lines()) {
        replace_process($lines) if XSwitch::State::libraries_changed();
        my ($command, $variables) = split /\n/, $lines;
        my ($file, @arguments) = XSwitch::Protocol::words($command);
        if ($isolation eq 'fork' || $isolation eq 'auto' && !XSwitch::State::is_exact($file)) {
            run_forked($file, $lines);
        }
        else {
            @ARGV = @arguments;
            %ENV = XSwitch::Protocol::variables($variables);
            prepare($file);
            run_script($file);
            end_process() if $$ != $engine;    # this process is a child that the script has forked
            destroy_variables();
            POSIX::_exit($status) if standard_output_was_used() || !script_processes_have_ended() || !all_closed();
            syswrite $control, "\4$status\n";
            POSIX::dup2($NOTHING, 0);    # an idle engine keeps no file with a body
            XSwitch::State::undo_changes($FIRST_FREE, $isolation eq 'auto');
            replace_process('') if $isolation eq 'auto' && XSwitch::State::has_loaded_unlisted();
        }
        $lines = '';
    }
}

# Run the script in a child of a zygote. If the child ended by a signal, or left processes behind, end in the same
# way.
sub run_forked {
    my ($file, $lines) = @_;
    # Without a wait status, the zygote has ended
    my $wait_status = XSwitch::Fork::run_script($file, $lines) // POSIX::SIGKILL();
    if (my $signal = $wait_status & 127) {
        POSIX::sigaction($signal, POSIX::SigAction->new('DEFAULT'));    # perl ignores SIGFPE
        kill $signal, $$;    # an incomplete answer must not look complete
        POSIX::_exit(128 + $signal);
    }
    $status = $wait_status >> 8;
    POSIX::_exit($status) unless XSwitch::Fork::only_zygotes_are_left();
    syswrite $control, "\4$status\n";
}

sub receive_lines {
    my $lines = '';
    while (($lines =~ tr/\n//) < 2) {
        sysread($control, $lines, 1 << 18, length $lines) or return '';
    }
    return $lines;
}

# Move the engine's descriptors to numbers that no script uses, and let no program inherit them.
sub set_up_descriptors {
    open my $nothing, '+<', '/dev/null' or die "/dev/null: $!";
    POSIX::dup2(fileno $nothing, $NOTHING);
    close $nothing if fileno $nothing != $NOTHING;
    POSIX::dup2(0, $DATA);
    POSIX::dup2(2, $ERRORS);
    open $control, '+<&=', $CONTROL or die "control socket: $!";
    open $data, '+<&=', $DATA or die "data socket: $!";
    POSIX::dup2($NOTHING, $_) for $FIRST_LINK .. $FIRST_FREE - 1;
    open $standard, '>-' or die "standard output: $!";
    $written = tell $standard;
    for ($CONTROL .. $FIRST_FREE - 1) {
        open my $handle, '+<&=', $_ or next;
        fcntl $handle, 2, 1;    # F_SETFD, FD_CLOEXEC
        push @handles, $handle;    # keeps it open
    }
    XSwitch::Fork::note_start_values($here, \%environment, \@INC, @handles[$FIRST_LINK - $CONTROL .. $#handles]);
}

# --------------------------------------------------------------- before a script: set up the state of a new process

sub prepare {
    my ($file) = @_;
    umask 022;
    chdir($file =~ s{[^/]*\z}{}r);
    close STDIN;
    POSIX::dup2($NOTHING, 0);
    if ($ENV{CONTENT_LENGTH}) {
        my $body = XSwitch::Protocol::body($data, $ENV{CONTENT_LENGTH}) // POSIX::_exit(0);
        POSIX::dup2(fileno $body, 0);
        close $body;    # perl does not close a descriptor that was put in the place of its STDIN or STDOUT
    }
    POSIX::dup2($ERRORS, 1);    # for a moment, see below
    POSIX::dup2($ERRORS, 2);
    XSwitch::Protocol::set_blocking($_) for $data, $handles[$ERRORS - $CONTROL];
    undef *STDIN;    # also removes a tied object, an alias, and page formats
    undef *STDOUT;
    no warnings 'io';    # about the handles that perl had under the same numbers
    open STDIN, '<&=', 0;
    # For a socket, perl would make a second stream, and a copy of this handle (open '>&') would not flush that one
    open STDOUT, '>&=', 1;
    POSIX::dup2($DATA, 1);
    $output = *STDOUT{IO};    # valid even if the script assigns another handle to the name
    if ((fileno STDERR // -1) != 2) { close STDERR; open STDERR, '>&=', 2; select STDERR; $| = 1 }
    binmode STDERR;
    select STDOUT;
    ($/, $\, $,, $;, $", $@, $?, $^A) = ("\n", undef, undef, "\034", ' ', '', 0, '');
    { no warnings; tell *NONE }    # resets the handle that was read last
    ($_, $., $^T, $^F) = (undef, undef, time, 2);
    $0 = $file if $0 ne $file;
    srand seed();
    FindBin::again() if $INC{'FindBin.pm'};
}

# Return a seed as good as that of srand without an argument. perl would read one random number at a time.
sub seed {
    if (length $seeds < 4 && open my $random, '<:raw', '/dev/urandom') { sysread $random, $seeds, 4096 }
    return unpack 'L', substr $seeds, 0, 4, '';
}

# ----------------------------------------------------------------------------------------------- the script

sub run_script {
    my ($file) = @_;
    my $code = XSwitch::State::code_of($file);
    $status = 0;
    if ($code) {
        () = stat '';    # fails: -e _ tells nothing of another file
        $! = 0;
        XSwitch::State::note_failure() if (run_code($code) // 1) == 0;
    }
    else { print STDERR qq(Can't open perl script "$file": $!\n); $status = 2 }
}

# Call code as perl runs a file: exit and die end it, and set the status. Return 1 if it came to its end, 0 after die or
# an error, undef after exit, and after last, next or redo outside of a loop.
sub run_code {
    my ($code) = @_;
    my ($well, $begun);
    $has_exited = 0;
    REQUEST: {
        last if $begun++;    # the code has called redo outside of its loops
        $XSwitch::State::error = '';
        eval { local *_ = \@ARGV; &$code; 1 } or $XSwitch::State::error = $@;
        my ($error, $number) = ($XSwitch::State::error, $! + 0);
        last if $well = !ref $error && $error eq '' ? 1 : 0;
        print STDERR $error;
        $status = $number & 255 || $? >> 8 & 255 || 255;
    }
    undef $XSwitch::State::error;
    if (!defined $well && !$has_exited) {    # perl's own text names the word and the line, which are not known here
        print STDERR qq(Can't "last", "next" or "redo" outside a loop block\n);
        $status = 255;
    }
    return $well;
}

# Replaces exit() in scripts.
sub exit_script {
    no warnings qw(exiting numeric);
    $status = ($_[0] // 0) & 255;
    if ($$ == $engine) {
        $has_exited = 1;
        local $SIG{__DIE__};
        eval { last REQUEST };    # fails in code that perl itself has called: a handler, DESTROY, a sort block
    }
    end_process();
}

# End this process as perl does.
sub end_process {
    run_end_blocks();
    CORE::exit($status);
}

# Run the END blocks: they find the status in $?, and may change it.
sub run_end_blocks {
    for my $block (XSwitch::State::end_blocks()) {
        $? = $status;
        $status = $? & 255 if run_code($block);
    }
}

# Destroy the script's variables, and flush all output.
sub destroy_variables {
    run_end_blocks();
    XSwitch::State::remove_handlers($isolation eq 'auto');
    select STDOUT;    # otherwise the selected handle would stay open
    run_code(\&XSwitch::State::delete_names);
    untie *$_ for *STDIN, *STDOUT, *STDERR;
    close $_ for $output, *STDOUT;
}

# Replaces caller() in scripts: the script itself has no caller.
sub caller (;$) {
    my $level = 1 + ($_[0] // 0);
    my @frame = CORE::caller() eq 'DB' ? DB::frame($level + 1) : CORE::caller($level);
    return if !@frame || $frame[0] =~ /\AXSwitch\b/;
    return !wantarray ? $frame[0] : @_ ? @frame : @frame[0 .. 2];
}
sub DB::frame { package DB; return CORE::caller($_[0]) }    # a caller in package DB also gets the arguments
BEGIN { *CORE::GLOBAL::caller = \&caller }

# Replaces $^S: is an eval of the script's own running? Handlers of $SIG{__DIE__} read it.
sub TIESCALAR { return bless [] }
sub STORE { }
sub FETCH {
    for (my $level = 0; my ($package, $sub) = (CORE::caller($level))[0, 3]; $level++) {
        return 0 if $level && $package =~ /\AXSwitch\b/;
        return 1 if $sub eq '(eval)';
    }
    return 0;
}
{ no strict 'refs'; tie my $state, __PACKAGE__; *{"\x13"} = \$state }

# Have all processes that the script started ended?
sub script_processes_have_ended {
    my $pid;
    do { $pid = waitpid -1, 1; XSwitch::Fork::note_reaped($pid) } while $pid > 0;    # WNOHANG
    return $pid < 0 || XSwitch::Fork::only_zygotes_are_left();
}

# Has the script opened "-"? That is perl's own handle, and not STDOUT here: its buffer would keep the output for a
# later answer. Flush it.
sub standard_output_was_used {
    return 0 if tell($standard) == $written;
    select((select($standard), $| = 1)[0]);
    return 1;
}

# Is no descriptor open except the engine's? Closing one without its handle would not help: perl counts the users of
# a descriptor, and would later leave another file of the same number open.
sub all_closed {
    for ($FIRST_FREE, $FIRST_FREE + 1) {
        return 0 if fcntl($control, 0, $FIRST_FREE) != $_;    # F_DUPFD: the lowest that is free
    }
    return 1;
}

# Replace this process by a fresh engine, which answers the request that was read already.
sub replace_process {
    my ($lines) = @_;
    XSwitch::Fork::end_all();
    local $environment{XSWITCH_FORKED} = join "\n", XSwitch::State::not_exact();
    open my $kept, '+>', undef or die "temporary file: $!";
    my $written = syswrite $kept, $lines;
    # The fresh engine would wait for the rest of the lines
    die "no room for the lines of the request: $!\n" if ($written // -1) != length $lines;
    sysseek $kept, 0, 0;
    fcntl $_, 2, 0 for $kept, $control;    # F_SETFD: programs inherit it
    POSIX::dup2(@$_) for [$DATA, 0], [$DATA, 1], [$ERRORS, 2];
    %ENV = %environment;
    exec $^X, __FILE__, fileno $kept or die "$^X: $!";
}

# Run an engine on the descriptors that X-Switch gives, to the end of this process.
sub serve {
    my ($kept) = @_;
    ($engine, %environment) = ($$, %ENV);
    $isolation = $environment{XSWITCH_ISOLATION} || 'auto';
    my $lines = '';
    if ($kept && open my $source, '<&=', $kept) { sysread $source, $lines, 1 << 18; close $source }
    set_up_descriptors();
    XSwitch::State::note_initial_state();
    main($lines);
    POSIX::_exit(0);
}

serve(@ARGV) unless CORE::caller();
1;
