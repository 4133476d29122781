# Runs scripts of the Perl engine in a separate process, forked from a zygote (perl_zygote.pl).
#
# There is one zygote without modules, and a few with the installed modules that a script was seen to load. In a
# child of such a zygote, the script's own `use` finds the module loaded, and only imports from it. A script gets
# such a zygote if its modules would certainly be the same ones: its own files are unchanged since that run, @INC
# leads to no other files, and the environment variables that its modules read are the same. Otherwise it gets the
# zygote without modules, which is slower and always right.

package XSwitch::Fork;

use strict;
use warnings;
use POSIX ();
use Socket ();

my ($DATA, $ERRORS) = (4, 6);    # as in perl.pl
my ($FIRST_LINK, $LINKS) = (7, 4);    # descriptors to zygotes; the first leads to the one without modules
my $MAX_SCRIPTS = 500;
my $MAX_REFUSALS = 5;      # of one script's modules; each refusal costs a zygote
my $IN_USE = 100;          # a zygote is not replaced within so many requests after its last one
my $CHECK_S = 1;           # seconds between two checks of the files that a zygote has loaded

# `use lib` whose directories can all be read in the text; then any other statement that may change the search path
my $PLAIN_LIB = qr{(?:^|(?<=[;{}]))\s*use\s+lib\s+(?:qw\s*(?:\([^()]*\)|/[^/]*/|\{[^{}]*\}|\[[^]]*\])
    | (?: '[^']*' | "(?:[^"\$\@\\]|\$(?:FindBin::)?(?:Real)?Bin\b)*" | \$(?:FindBin::)?(?:Real)?Bin\b
    | (?:File::Basename::)?dirname\b | __FILE__ | [\s,().] )+ )\s*;}mx;
my $OTHER_LIB = qr/\blib\s*->|\blib\b["';]|\buse\s+lib\b|\bINC\b|\blocal::lib\b/;

my ($here, %environment, @libraries, @handles);
# By slot. A zygote has its pid, `started` and `checked_at` (times), `used` (a value of $clock) and the `names` of
# its modules, in one text. A zygote that has loaded them also has:
#   modules, files     key of %INC -> file; file -> its signature
#   tops               first part of a module's name -> keys of %INC
#   read, variables    names of the environment variables that the modules read; the request's variables then
#   overrides          names of the subs in CORE::GLOBAL, in one text
my @zygotes;
my %facts_of;   # script -> the facts that a run in a process without its modules has shown
my $clock = 0;  # counts requests: the least recently used zygote is replaced

# Return the first descriptor of the links, and the one after the last.
sub link_descriptors { return $FIRST_LINK, $FIRST_LINK + $LINKS }

# Store the values that zygotes start with. handles: of the descriptors for links.
sub note_start_values {
    my ($directory, $variables, $path, @links) = @_;
    ($here, @handles) = ($directory, @links);
    %environment = map { $_ => $variables->{$_} } grep { !/\A(?:LANG|LC_|XSWITCH_)/ } keys %$variables;
    @libraries = @$path;
}

# Run a request's script; return its wait status, or nothing if its zygote has ended.
sub run_script {
    my ($file, $lines) = @_;
    $clock++;
    my $facts = facts_about($file);
    my $slot = $facts ? slot_for($facts, $lines) : 0;
    for (1, 2) {
        start_zygote($slot) unless $zygotes[$slot];
        my $expected = $slot ? $facts->{path} : '';
        last if XSwitch::Protocol::send_frame($handles[$slot], 'run', $facts ? 0 : 1, $expected, $lines);
        end_zygote($slot);    # the zygote had ended
        $slot = 0;
    }
    $zygotes[$slot]{used} = $clock;
    while (my ($what, @texts) = XSwitch::Protocol::receive_frame($handles[$slot])) {
        return $texts[0] if $what eq 'ended';
        note_facts($file, @texts) if $what eq 'learned';
    }
    end_zygote($slot);
    return;
}

# Return the facts about a script; nothing if a run has shown none, or if a file has changed: the facts are then
# dropped.
sub facts_about {
    my ($file) = @_;
    my $facts = $facts_of{$file} or return;
    my $own_files = $facts->{own_files};
    return $facts unless grep { $own_files->{$_} ne XSwitch::State::signature($_) } keys %$own_files;
    delete $facts_of{$file};
    return;
}

# --------------------------------------------------------------------------------------- the facts that a run shows

# Store the facts about a script that a run without its modules has shown: path, overrides and modules
# (perl_child.pl, report()). The script gets a zygote with modules only if its search path and its `use lib` can be
# read in the text.
sub note_facts {
    my ($file, $path, $overrides, %modules) = @_;
    %facts_of = () if keys %facts_of >= $MAX_SCRIPTS;
    my $directory = $file =~ s{[^/]*\z}{}r;
    my @not_installed = grep { m{[/.]} && !is_installed($_) } values %modules;
    my %own_files = map { (m{\A/} ? $_ : $directory . $_) => 1 } @not_installed;
    my $facts = { path => $path, overrides => $overrides, modules => \%modules };
    @$facts{qw(names refusals warns)} = ([], 0, 0);
    $facts->{own_files} = { map { $_ => XSwitch::State::signature($_) } $file, keys %own_files };
    $facts_of{$file} = $facts;
    my @path = split /\0/, $path, -1;
    my ($first) = grep { $path[$_] eq $libraries[0] } 0 .. $#path;
    return if !defined $first || grep { $_ eq 'CODE' } @path;
    return if "@path[$first .. $first + $#libraries]" ne "@libraries";
    $facts->{front} = [map { m{\A/} ? $_ : $directory . $_ } @path[0 .. $first - 1]];
    my %texts = map { $_ => code_of($_) } keys %{ $facts->{own_files} };
    return if grep { !defined || s/$PLAIN_LIB//gr =~ $OTHER_LIB } values %texts;
    my ($first_line) = $texts{$file} =~ /\A([^\n]*)/;
    $facts->{warns} = $first_line =~ /\A#!.*perl.*\s-\w*w/ ? 1 : 0;
    my %met;
    $facts->{names} = [grep { !/\A(?:strict|warnings|lib)\z/ } modules_used_by($file, $facts, \%texts, \%met)];
}

# Return a file's code without its documentation and comments; nothing if the file cannot be read.
sub code_of {
    my ($file) = @_;
    return unless -f $file;
    open my $handle, '<', $file or return;
    my $text = do { local $/; <$handle> } // '';
    $text =~ s/^__(?:END|DATA)__\b.*//ms;
    $text =~ s/^=[a-zA-Z].*?(?:^=cut\b[^\n]*|\z)//gms;
    return $text =~ s/^\s*#(?!!).*//gmr;
}

# Return the names of the installed modules that a file and its own modules use, in this order.
sub modules_used_by {
    my ($file, $facts, $texts, $met) = @_;
    my @names;
    for my $name ($texts->{$file} =~ /(?:^|[;{}])\s*use\s+([A-Za-z]\w*(?:::\w+)*)/gm) {
        my $path = $facts->{modules}{ $name =~ s{::}{/}gr . '.pm' } // next;
        next if $met->{$name}++;
        if (is_installed($path)) { push @names, $name }
        elsif (exists $texts->{$path}) { push @names, modules_used_by($path, $facts, $texts, $met) }
    }
    return @names;
}

sub is_installed {
    my ($file) = @_;
    for (@libraries) { return 1 if index($file, "$_/") == 0 }
    return 0;
}

# -------------------------------------------------------------------------------------------------------- zygotes

# Return the slot of a zygote that has a script's modules; 0 (the one without modules) if there is none yet. The
# missing one is then started, for later requests. A zygote whose files have changed ends.
sub slot_for {
    my ($facts, $lines) = @_;
    my @names = @{ $facts->{names} } or return 0;
    my $wanted = join ' ', $facts->{warns}, @names;
    my ($slot) = grep { $zygotes[$_] && $zygotes[$_]{names} eq $wanted } 1 .. $LINKS - 1;
    my $line = (split /\n/, $lines)[1];
    if (!$slot) {
        $slot = $facts->{refusals} < $MAX_REFUSALS && free_slot() or return 0;
        eval { start_zygote($slot); 1 } or return 0;    # no process can be made: the other zygote answers
        $zygotes[$slot]{names} = $wanted;
        $zygotes[$slot]{variables} = variables($line);
        XSwitch::Protocol::send_frame($handles[$slot], 'load', $line, $facts->{warns}, @names);
        return 0;
    }
    my $zygote = $zygotes[$slot];
    return 0 if !$zygote->{files} && !has_loaded($slot, $facts);
    if ($zygote->{checked_at} + $CHECK_S <= time || $zygote->{checked_at} > time) {
        $zygote->{checked_at} = time;
        my $files = $zygote->{files};
        my $has_changed = grep { $files->{$_} ne XSwitch::State::signature($_) } keys %$files;
        for my $place (0 .. $#libraries) {
            $has_changed ||= hides_module($zygote, $libraries[$place], [@libraries[$place + 1 .. $#libraries]]);
        }
        if ($has_changed) { end_zygote($slot); return 0 }
    }
    return may_answer($zygote, $facts, $line) ? $slot : 0;
}

# Return a free slot, or the slot of the least recently used zygote, which ends; 0 if all are in use.
sub free_slot {
    my ($free) = grep { !$zygotes[$_] } 1 .. $LINKS - 1;
    return $free if $free;
    my ($slot) = sort { $zygotes[$a]{used} <=> $zygotes[$b]{used} } 1 .. $LINKS - 1;
    return 0 if $zygotes[$slot]{used} + $IN_USE > $clock;
    end_zygote($slot);
    return $slot;
}

sub variables {
    my ($line) = @_;
    return { XSwitch::Protocol::variables($line) };
}

# Has a zygote loaded its modules? Read its report, if the report is there. If a module was refused, the zygote ends,
# and the script's next one leaves out that module.
sub has_loaded {
    my ($slot, $facts) = @_;
    my $zygote = $zygotes[$slot];
    my $ready = '';
    vec($ready, $FIRST_LINK + $slot, 1) = 1;
    return 0 unless select $ready, undef, undef, 0;
    my ($what, @texts) = XSwitch::Protocol::receive_frame($handles[$slot]);
    if (($what // '') ne 'loaded') {
        end_zygote($slot);
        $facts->{refusals}++;
        $facts->{names} = [grep { $_ ne ($texts[0] // '') } @{ $facts->{names} }];
        return 0;
    }
    my $count = shift @texts;
    $zygote->{read} = [splice @texts, 0, $count];
    $zygote->{overrides} = shift @texts;
    $zygote->{modules} = {@texts};
    my @files = grep { m{\A/} } values %{ $zygote->{modules} };
    $zygote->{files} = { map { $_ => XSwitch::State::signature($_) } @files };
    $zygote->{tops} = {};
    push @{ $zygote->{tops}{ (split m{/|\.pm\z})[0] } }, $_ for keys %{ $zygote->{modules} };
    $zygote->{checked_at} = 0;
    if (grep { ((stat)[10] // 0) >= $zygote->{started} } keys %{ $zygote->{files} }) {
        end_zygote($slot);    # it may have loaded an earlier version of the file
        return 0;
    }
    return 1;
}

# May this zygote answer the request? The script must load exactly the zygote's modules.
sub may_answer {
    my ($zygote, $facts, $line) = @_;
    my $may_answer = $facts->{may_answer}{ $zygote->{pid} } //= do {
        my $modules = $facts->{modules};
        my @others = grep { ($modules->{$_} // '') ne $zygote->{modules}{$_} } keys %{ $zygote->{modules} };
        !@others && $facts->{overrides} eq $zygote->{overrides} ? 1 : 0;
    };
    return 0 unless $may_answer;
    for (@{ $facts->{front} }) { return 0 if hides_module($zygote, $_, \@libraries) }
    my @read = @{ $zygote->{read} } or return 1;
    my ($request_values, $zygote_values) = (variables($line), $zygote->{variables});
    return !grep { ($request_values->{$_} // "\0") ne ($zygote_values->{$_} // "\0") } @read;
}

# Does this directory have a file that perl would find before one that a zygote has loaded from another directory?
sub hides_module {
    my ($zygote, $directory, $others) = @_;
    opendir my $all, $directory or return 0;
    my %there = map { s/\.pmc?\z//r => 1 } readdir $all;
    for my $top (grep { $there{$_} } keys %{ $zygote->{tops} }) {
        for my $key (@{ $zygote->{tops}{$top} }) {
            my $file = $zygote->{modules}{$key};
            next unless grep { $file eq "$_/$key" } @$others;
            return 1 if -e "$directory/$key" || -e "$directory/${key}c";
        }
    }
    return 0;
}

# Start the zygote of a slot. Dies if no process can be made.
sub start_zygote {
    my ($slot) = @_;
    socketpair my $our_end, my $zygote_end, Socket::AF_UNIX(), Socket::SOCK_STREAM(), 0 or die "socketpair: $!";
    my $pid = fork // die "fork: $!";
    if (!$pid) {
        POSIX::dup2(fileno $zygote_end, 0);
        POSIX::dup2($DATA, 1);
        POSIX::dup2($ERRORS, 2);
        %ENV = %environment;
        { exec { $^X } $^X, "${here}perl_zygote.pl" }
        POSIX::_exit(127);
    }
    POSIX::dup2(fileno $our_end, $FIRST_LINK + $slot);
    fcntl $handles[$slot], 2, 1;    # F_SETFD, FD_CLOEXEC
    $zygotes[$slot] = { pid => $pid, names => '', used => $clock, started => time, checked_at => 0 };
}

# End the zygote of a slot.
sub end_zygote {
    my ($slot) = @_;
    my $zygote = delete $zygotes[$slot] or return;
    POSIX::dup2($DATA + 1, $FIRST_LINK + $slot);    # /dev/null
    fcntl $handles[$slot], 2, 1;
    return unless $zygote->{pid};
    kill KILL => $zygote->{pid};
    waitpid $zygote->{pid}, 0;
}

# Note that a child was reaped, perhaps a zygote: another process may have its number now.
sub note_reaped {
    my ($pid) = @_;
    for (grep { $zygotes[$_] && $zygotes[$_]{pid} == $pid } 0 .. $#zygotes) {
        $zygotes[$_]{pid} = 0;
        end_zygote($_);
    }
}

sub end_all { end_zygote($_) for 0 .. $LINKS - 1 }

# Is every child of this process a zygote? Others are leftover processes of a script; ended ones are reaped.
sub only_zygotes_are_left {
    my %zygote_pids = map { $_->{pid} => 1 } grep { $_ } @zygotes;
    open my $children, '<', "/proc/$$/task/$$/children" or return 0;
    for my $pid (split ' ', <$children> // '') {
        return 0 if !$zygote_pids{$pid} && waitpid($pid, 1) == 0;    # WNOHANG
    }
    return 1;
}

1;
