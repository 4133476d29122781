# The work of a zygote, and of its children until their script runs: see perl_zygote.pl.
#
# The engine (perl_fork.pl) talks to it over descriptor 0, in frames. "load" makes it load modules, once. "run"
# makes it fork a child for a request. The answers are "loaded" or "refused", and "ended" with the child's wait
# status. At its end, a child may also send "learned": the modules that its script has loaded, and their files.

package XSwitch::Zygote;

use strict;
use warnings;

# Load no other module here: at its end perl visits every name, in memory that is still shared.
my $here = (__FILE__ =~ m{\A/} ? '' : './') . __FILE__ =~ s{[^/]*\z}{}r;
require "${here}perl_protocol.pl";
delete @INC{ grep { m{/perl_(?:child|protocol)\.pl\z} } keys %INC };

my $LINK = 64;    # least descriptor to the engine: a script's own begin where `perl script` has them
my $LAST_OF_PROGRAM = 31;
my $KILLED = 9;    # wait status of a process that SIGKILL has ended

my ($link, $program, $number);  # to the engine; the file that perl reads, and its descriptor
my $read;                       # bytes that perl has read before the script begins
my ($script, $reports, $path);  # of a child: its file; its pid, if it reports its modules; the required @INC
my $loaded = 0;
my %startup = map { $_ => $ENV{$_} } grep { /\APERL/ } keys %ENV;

# Serve until the engine has ended. Returns in children only.
sub serve {
    my ($file) = @_;
    ($program, $read) = handle_of($file);
    $number = fileno $program;
    open $link, '+<&=', fcntl(STDIN, 0, $LINK) || fcntl(STDIN, 0, $number + 1) or die "link: $!";    # F_DUPFD
    fcntl $link, 2, 1;    # F_SETFD, FD_CLOEXEC
    while (my ($order, @texts) = XSwitch::Protocol::receive_frame($link)) {
        if ($order eq 'load') { load(@texts); next }
        my $child = fork;
        return prepare(@texts) if defined $child && !$child;    # to perl, which continues to read
        if (defined $child) { waitpid $child, 0 }
        else { syswrite STDERR, "cannot fork: $!\n"; $? = $KILLED }    # the body was not read: the engine must end
        XSwitch::Protocol::send_frame($link, 'ended', $?);
    }
    kill KILL => $$;    # no END block of a module may run
}

# Return a handle on the descriptor by which perl reads this file, and the file's length.
sub handle_of {
    my ($file) = @_;
    my @status_of_file = stat $file;
    for my $number (3 .. $LAST_OF_PROGRAM) {
        open my $handle, '<&=', $number or next;
        my @status = stat $handle;
        return $handle, $status[7] if "@status[0, 1]" eq "@status_of_file[0, 1]";
    }
    die "$file is not open\n";
}

# Make perl continue to read from another handle.
sub read_from {
    my ($source) = @_;
    local $^F = $number;    # open() then uses the same descriptor
    open $program, '<&', $source or die "descriptor: $!";
    fcntl $program, 2, 1;    # F_SETFD, FD_CLOEXEC
}

sub load {
    my ($variables, $warns, @names) = @_;
    require "${here}perl_watch.pl";
    delete $INC{"${here}perl_watch.pl"};
    $loaded = 1;
    my %environment = XSwitch::Protocol::variables($variables);
    XSwitch::Protocol::send_frame($link, XSwitch::Watch::load(\%environment, $warns, @names));
}

# Give this process the state that `perl script` would have, and make perl read the script next.
sub prepare {
    my ($report, $expected, $lines) = @_;
    my ($command, $variables) = split /\n/, $lines;
    ($script, @ARGV) = XSwitch::Protocol::words($command);
    %ENV = XSwitch::Protocol::variables($variables);
    umask 022;
    chdir($script =~ s{[^/]*\z}{}r);
    XSwitch::Protocol::set_blocking($_) for *STDOUT, *STDERR;
    if (!eval { take_input($ENV{CONTENT_LENGTH} || 0); 1 }) {
        print STDERR "$script: $@";
        kill KILL => $$;    # ends the engine, too: the next script would read the rest of the body as its own
    }
    if ($report) { $reports = $$ }
    else { close $link }
    $path = $expected if $loaded;
    $0 = $script;
    $^T = time;
    srand if $loaded;    # otherwise all children would have the same random numbers
    become_perl() unless reads_like_perl();
    pipe my $source, my $sink or die "pipe: $!";
    my $prefix = qq(#line 0 "$script"\nBEGIN { XSwitch::Zygote::begin() }\n);
    syswrite $sink, $prefix;
    $read += length $prefix;
    read_from($source);
}

sub take_input {
    my ($length) = @_;
    if (!$length) { open STDIN, '<', '/dev/null' or die "/dev/null: $!"; return }
    open my $data, '<&=', 1 or die "data socket: $!";
    my $body = XSwitch::Protocol::body($data, $length) or kill KILL => $$;    # the client has left
    open STDIN, '<&', $body or die "standard input: $!";
}

# perl has just read the line that calls this. From here on it reads the script.
sub begin {
    open my $source, '<', $script or become_perl();
    read_from($source);
    close $_ for $source, $program;    # perl keeps the descriptor, and closes it at the end of the file
    () = stat '';    # fails: -e _ tells nothing of another file
    ($!, $?, $@) = (0, 0, '');
}

# Can this interpreter read the script as it would from its command line? Some things take effect only at perl's
# start: a first line with another interpreter or encoding, and switches and locales.
sub reads_like_perl {
    open my $source, '<', $script or return 0;
    sysread $source, my $first, 4096;
    $first //= '';
    return 0 if $script =~ /["\n]/ || grep { /\A(?:LANG|LC_|PERL)/ } keys %ENV;
    return 0 if $first =~ /\A(?:\xEF\xBB\xBF|\xFE\xFF|\xFF\xFE|.?\0)/s;
    return $first !~ /\A#!/ || $first =~ m{\A#![^\n]*\bperl[\w.]*(?:\s+-w)?\s*?\r?(?:\n|\z)};
}

# Replace this process by `perl script`, with the switches that the kernel would pass on.
sub become_perl {
    my $switches;
    if (open my $source, '<', $script) {
        ($switches) = (scalar(<$source>) // '') =~ /\A#![^\n]*\bperl\S*[ \t]+(-\w*[tT]\w*)\s*$/;
    }
    %ENV = (%startup, %ENV);
    exec { $^X } $^X, $switches // (), $script, @ARGV or print STDERR "$^X: $!\n";
    kill KILL => $$;
}

# Called when the script is compiled, before it runs.
sub before_run {
    become_perl() if defined $path && join("\0", @INC) ne $path;    # @INC has changed: other modules might be found
    local $!;
    if (exists $main::{DATA} && (fileno(*main::DATA) // -1) == $number) {
        seek main::DATA, tell(main::DATA) - $read, 0;    # perl counts from the beginning of this program
    }
}
INIT { before_run() }

# Called when the script has ended, with its END blocks: this END block was the first to be compiled.
sub report {
    local ($?, $!, $@, $,, $\);
    my @path = map { ref ? 'CODE' : $_ } @INC;
    my %modules = map { $_ => $INC{$_} } grep { defined $INC{$_} && !ref $INC{$_} } keys %INC;
    my @overrides = sort keys %CORE::GLOBAL::;
    XSwitch::Protocol::send_frame($link, 'learned', join("\0", @path), join("\0", @overrides), %modules);
}
END { report() if ($reports // 0) == $$ }

1;
