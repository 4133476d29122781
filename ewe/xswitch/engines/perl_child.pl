# A zygote's work, and that of its children until their script runs: see perl_zygote.pl.
#
# The engine (perl_fork.pl) talks to it over descriptor 0, in frames: "load" has it load modules, once; "run" has it
# fork a child for a request. The answers are "loaded" or "refused", and "ended" with the child's wait status. A child
# that is asked to says "learned" at its end: which modules its script has loaded, and from where.

package XSwitch::Zygote;

use strict;
use warnings;

# No module more: at its end perl looks at every name that there is, in memory that is still shared.
my $here = (__FILE__ =~ m{\A/} ? '' : './') . __FILE__ =~ s{[^/]*\z}{}r;
require "${here}perl_protocol.pl";
delete @INC{ grep { m{/perl_(?:child|protocol)\.pl\z} } keys %INC };

my $LINK = 64;    # least number of the descriptor to the engine: a script's own begin where they do under `perl script`
my $LAST_OF_PROGRAM = 31;

my ($link, $program, $number);  # to the engine; what perl reads, and its descriptor
my $read;                       # bytes that perl has read where the script begins
my ($script, $reports, $path);  # of a child: its file; its pid, if it says what it has loaded; what @INC must be
my $loaded = 0;
my %startup = map { $_ => $ENV{$_} } grep { /\APERL/ } keys %ENV;

# Serve until the engine has gone. Returns in children only.
sub serve {
    my ($file) = @_;
    ($program, $read) = handle_of($file);
    $number = fileno $program;
    open $link, '+<&=', fcntl(STDIN, 0, $LINK) || fcntl(STDIN, 0, $number + 1) or die "link: $!";    # F_DUPFD
    fcntl $link, 2, 1;    # F_SETFD, FD_CLOEXEC
    while (my ($order, @texts) = XSwitch::Protocol::hear($link)) {
        if ($order eq 'load') { load(@texts); next }
        my $child = fork;
        return prepare(@texts) if defined $child && !$child;    # to perl, which reads on
        if (defined $child) { waitpid $child, 0 }
        else { syswrite STDERR, "cannot fork: $!\n"; $? = 255 << 8 }
        XSwitch::Protocol::tell($link, 'ended', $?);
    }
    kill KILL => $$;    # no END block of a module may run
}

# Return a handle on the descriptor by which perl reads this file, and the file's length.
sub handle_of {
    my ($file) = @_;
    my @wanted = stat $file;
    for my $number (3 .. $LAST_OF_PROGRAM) {
        open my $handle, '<&=', $number or next;
        my @found = stat $handle;
        return $handle, $found[7] if "@found[0, 1]" eq "@wanted[0, 1]";
    }
    die "$file is not open\n";
}

# Have perl read on from another handle.
sub read_from {
    my ($source) = @_;
    local $^F = $number;    # so that open() puts it under the same descriptor
    open $program, '<&', $source or die "descriptor: $!";
    fcntl $program, 2, 1;    # F_SETFD, FD_CLOEXEC
}

sub load {
    my ($variables, $warns, @names) = @_;
    require "${here}perl_watch.pl";
    delete $INC{"${here}perl_watch.pl"};
    $loaded = 1;
    my @said = XSwitch::Watch::load({ map { split /=/, $_, 2 } XSwitch::Protocol::words($variables) }, $warns, @names);
    XSwitch::Protocol::tell($link, @said);
}

# Give this process what that of `perl script` would have, and make the script what perl reads next.
sub prepare {
    my ($report, $expected, $lines) = @_;
    my ($command, $variables) = split /\n/, $lines;
    ($script, @ARGV) = XSwitch::Protocol::words($command);
    %ENV = map { split /=/, $_, 2 } XSwitch::Protocol::words($variables);
    umask 022;
    chdir($script =~ s{[^/]*\z}{}r);
    XSwitch::Protocol::set_blocking($_) for *STDOUT, *STDERR;
    take_input($ENV{CONTENT_LENGTH} || 0);
    if ($report) { $reports = $$ }
    else { close $link }
    $path = $expected if $loaded;
    $0 = $script;
    $^T = time;
    srand if $loaded;    # or all children would have the same random numbers
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
    my $body = XSwitch::Protocol::body($data, $length) or kill KILL => $$;    # its client has gone
    open STDIN, '<&', $body or die "standard input: $!";
}

# The last that perl has read is the line that calls this; from here on it reads the script.
sub begin {
    open my $source, '<', $script or become_perl();
    read_from($source);
    close $_ for $source, $program;    # perl keeps the descriptor, and closes it when it has read all
    ($!, $?, $@) = (0, 0, '');
}

# Can this interpreter take the script as it would have from its command line? What it looks for in a file's first
# bytes (another interpreter, another encoding), and switches and locales for its own start, come too late here.
sub reads_like_perl {
    open my $source, '<', $script or return 0;
    sysread $source, my $first, 4096;
    $first //= '';
    return 0 if $script =~ /["\n]/ || grep { /\A(?:LANG|LC_|PERL)/ } keys %ENV;
    return 0 if $first =~ /\A(?:\xEF\xBB\xBF|\xFE\xFF|\xFF\xFE|.?\0)/s;
    return $first !~ /\A#!/ || $first =~ m{\A#![^\n]*\bperl[\w.]*(?:\s+-w)?\s*?\r?(?:\n|\z)};
}

# Replace this process by one of `perl script`, with the switches that the kernel would pass on.
sub become_perl {
    my $switches;
    if (open my $source, '<', $script) {
        ($switches) = (scalar(<$source>) // '') =~ /\A#![^\n]*\bperl\S*[ \t]+(-\w*[tT]\w*)\s*$/;
    }
    %ENV = (%startup, %ENV);
    exec { $^X } $^X, $switches // (), $script, @ARGV or print STDERR "$^X: $!\n";
    kill KILL => $$;
}

# The script is compiled, and has not begun to run.
sub compiled {
    become_perl() if defined $path && join("\0", @INC) ne $path;    # modules might be others than were loaded before
    local $!;
    if (exists $main::{DATA} && (fileno(*main::DATA) // -1) == $number) {
        seek main::DATA, tell(main::DATA) - $read, 0;    # perl counts from where this program began
    }
}
INIT { compiled() }

# The script has ended, with its END blocks: this one was the first.
sub report {
    local ($?, $!, $@, $,, $\);
    my @path = map { ref ? 'CODE' : $_ } @INC;
    my %modules = map { $_ => $INC{$_} } grep { defined $INC{$_} && !ref $INC{$_} } keys %INC;
    XSwitch::Protocol::tell($link, 'learned', join("\0", @path), join("\0", sort keys %CORE::GLOBAL::), %modules);
}
END { report() if ($reports // 0) == $$ }

1;
