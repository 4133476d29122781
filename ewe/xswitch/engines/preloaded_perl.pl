# The preloaded parent of Perl engines: preloaded_perl.pl ENGINE-FILE MODULE ...
#
# Loads the engine and the modules, then forks for each order that comes on descriptor 0 (see
# ewe/xswitch/privileged/preloaded.py). The child takes its descriptors, limits and user, and becomes an engine
# without the start of an interpreter. It is forked twice: then suexecme is its parent, learns of its end, and ends
# it when suexecme itself ends.
#
# It does the work of process.py, which starts engines by their command. Perl has no functions for limits, prctl(2)
# and descriptors beside a message: here they are system calls, by number.

package XSwitch::Preloaded;

use strict;
use warnings;
BEGIN {    # Debian's perl-base has no JSON::PP
    eval { require JSON::PP } or do { print STDERR "no module JSON::PP here: apt install perl\n"; exit 1 };
}
use POSIX ();

my %NUMBERS = (    # the kernel's, as in <asm/unistd.h>
    x86_64 => {
        recvmsg => 47, setgroups => 116, setresuid => 117, setresgid => 119, prctl => 157, keyctl => 250,
        prlimit64 => 302,
    },
    aarch64 => {
        recvmsg => 212, setgroups => 159, setresuid => 147, setresgid => 149, prctl => 167, keyctl => 219,
        prlimit64 => 261,
    },
);
my $CLOSE_RANGE = 436;    # everywhere
# <sys/resource.h>
my %RESOURCES = (cpu => 0, file_size => 1, core => 4, processes => 6, files => 7, memory => 9);
my ($PDEATHSIG, $DUMPABLE, $SUBREAPER, $NO_NEW_PRIVS) = (1, 4, 36, 38);    # <sys/prctl.h>
my ($SOL_SOCKET, $SCM_RIGHTS, $MSG_CMSG_CLOEXEC) = (1, 1, 0x40000000);    # <sys/socket.h>
my $JOIN_SESSION_KEYRING = 1;    # <linux/keyctl.h>
my $STALE =
    'has changed since it was preloaded; until X-Switch is restarted, new engines load their modules themselves';
my ($CONTROL, $CANNOT_START, $MAX_ORDER) = (3, 127, 65536);

my $machine = (POSIX::uname())[4];
my $numbers = $NUMBERS{$machine} or die "no preloaded parent on $machine: its system calls are not known\n";
syscall($CLOSE_RANGE, 1 << 30, 1 << 30, 0) == 0 or die "no preloaded parent on this kernel: close_range: $!\n";

# Make a system call. A number is passed as a number, a text by its address.
sub call {
    my $name = shift;
    my $result = syscall($numbers->{$name}, @_);
    die "$name: $!\n" if $result < 0;
    return $result;
}

# Fork for each order, until suexecme has ended.
sub main {
    my ($engine, @modules) = @ARGV;
    require($engine =~ m{\A/} ? $engine : "./$engine");
    delete $INC{$engine};
    for my $module (@modules) {
        eval "package XSwitch::Preloaded::Names; use $module; 1"
            or print STDERR "$module cannot be loaded beforehand: ", $@ =~ s/ \(you may .*//sr, "\n";
    }
    XSwitch::State::note_modules();
    my $suexecme = getppid;
    my $is_stale = 0;
    while (my ($text, @descriptors) = receive_order()) {
        my $order = JSON::PP::decode_json($text);
        my $changed = $is_stale ? undef : XSwitch::State::changed_library();
        if (defined $changed) { $is_stale = 1; print STDERR "$changed $STALE\n" }
        my $between = fork;
        if (defined $between && !$between) {
            $between = $$;
            my $child = fork;
            POSIX::_exit(0) if $child || !send_pid($child) || !@descriptors;
            eval { run_engine($order, $between, $suexecme, @descriptors) };
            syswrite STDERR, "the engine cannot be started: $@";
            POSIX::_exit($CANNOT_START);
        }
        send_pid($between) unless defined $between;
        waitpid $between, 0 if $between;
        POSIX::close($_) for @descriptors;
    }
}

# Tell suexecme the pid of a new process, which is this one; 0 if none could be made.
sub send_pid {
    my ($made) = @_;
    my $text = sprintf '{"pid":%d}', defined $made ? $$ : 0;
    POSIX::write(0, $text, length $text);
    return defined $made;
}

# Return the next packet and the descriptors beside it; nothing if suexecme has ended: recvmsg(2).
sub receive_order {
    my ($text, $control) = ('', '');
    vec($text, $MAX_ORDER - 1, 8) = vec($control, 63, 8) = 0;    # separate buffers, which the kernel fills
    my $place = pack 'P Q', $text, $MAX_ORDER;
    my $message = pack 'Q L x4 P Q P Q l x4', 0, 0, $place, 1, $control, 64, 0;
    my $length = call('recvmsg', 0, $message, $MSG_CMSG_CLOEXEC) or return;
    my ($size, $level, $type) = unpack 'Q l l', $control;    # a cmsghdr, and its content
    my $count = $size && $level == $SOL_SOCKET && $type == $SCM_RIGHTS ? ($size - 16) / 4 : 0;
    return (substr($text, 0, $length), unpack "x16 l$count", $control);
}

# Run an engine, to the end of this process.
sub run_engine {
    my ($order, $between, $suexecme, $data, $errors, $control) = @_;
    my ($name, $uid, $gid, $groups, $home) = @{ $order->{account} };
    POSIX::setsid();
    POSIX::dup2(@$_) // die "descriptors: $!\n" for [$data, 0], [$data, 1], [$errors, 2], [$control, $CONTROL];
    syscall($CLOSE_RANGE, $CONTROL + 1, 0x7fffffff, 0) == 0 or die "close_range: $!\n";
    POSIX::sigprocmask(POSIX::SIG_SETMASK(), POSIX::SigSet->new);
    umask 022;
    enter_cgroup($order->{cgroup}) if $order->{cgroup};
    set_limits(%{ $order->{limits} }, core => 0);
    become($name, $uid, $gid, @$groups);
    call('prctl', $DUMPABLE, 1, 0, 0, 0);    # the user owns /proc/self, as after execve(2)
    chdir $home or chdir '/';
    select undef, undef, undef, 0.0002 while getppid == $between;    # until suexecme adopts it, or has ended
    call('prctl', $SUBREAPER, 1, 0, 0, 0);
    call('prctl', $PDEATHSIG, POSIX::SIGKILL(), 0, 0, 0);
    POSIX::_exit(0) if getppid != $suexecme;
    %ENV = %{ $order->{environment} };
    XSwitch::serve();
}

# Enter a cgroup by its file cgroup.procs: 0 stands for the process that writes.
sub enter_cgroup {
    my ($file) = @_;
    open my $processes, '>', $file or die "$file: $!\n";
    syswrite $processes, '0' or die "$file: $!\n";
}

# Set limits; 0: no limit, except that core files have the limit 0.
sub set_limits {
    my (%limits) = @_;
    for my $name (grep { $limits{$_} || $_ eq 'core' } keys %limits) {
        my $old = pack 'Q2', 0, 0;
        call('prlimit64', 0, $RESOURCES{$name}, 0, $old);
        my $most = (unpack 'Q2', $old)[1];
        my $amount = $limits{$name} < $most ? $limits{$name} : $most;
        call('prlimit64', 0, $RESOURCES{$name}, pack('Q2', $amount, $amount), 0);
    }
    # The script's write fails with EFBIG. The default action would end the engine
    $SIG{XFSZ} = 'IGNORE' if $limits{file_size};
}

# Join a new, empty session keyring, as in process.py: root's may have keys, which any process that has it may read.
sub leave_session_keyring {
    return if syscall($numbers->{keyctl}, $JOIN_SESSION_KEYRING, 0) >= 0;
    die "session keyring: $!\n" if $! != POSIX::ENOSYS() && $! != POSIX::EPERM();
}

# Set the groups and the user, which cannot be undone, and check the result.
sub become {
    my ($name, $uid, $gid, @groups) = @_;
    if ($> == 0) {
        leave_session_keyring();
        call('setgroups', scalar @groups, pack 'L*', @groups);
        call('setresgid', (0 + $gid) x 3);
        call('setresuid', (0 + $uid) x 3);
    }
    call('prctl', $NO_NEW_PRIVS, 1, 0, 0, 0);
    open my $file, '<', '/proc/self/status' or die "/proc/self/status: $!\n";
    my %status = map { /(\w+):\s*(.*)/ } <$file>;
    my @ids = split ' ', "$status{Uid} $status{Gid}";
    die "could not become $name\n" if "@ids" ne join ' ', ($uid) x 4, ($gid) x 4;
    die "privileges are left\n" if $uid && $status{CapEff} =~ /[^0]/ || $status{NoNewPrivs} != 1;
}

main();
