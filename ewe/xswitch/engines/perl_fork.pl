# The Perl engine's scripts that run in a separate process, forked from a zygote (perl_zygote.pl).
#
# There is one zygote without modules, and a few with the installed modules that a script was seen to load: what the
# script's own `use` then finds loaded, it only imports. A script gets such a zygote where everything says that its
# modules would be the same ones: its own files are as they were when it was seen, @INC leads to no other files, and
# what modules have read of the environment is the same. Else the one without modules, which is slower and always right.

package XSwitch::Fork;

use strict;
use warnings;
use POSIX ();
use Socket ();

my ($DATA, $ERRORS) = (4, 6);    # as in perl.pl
my ($FIRST_LINK, $LINKS) = (7, 4);    # descriptors to zygotes: the first is that to the one without modules
my $MAX_SCRIPTS = 500;
my $MAX_REFUSALS = 5;      # of modules of one script, each of which costs a zygote
my $IN_USE = 100;          # requests since the last of a zygote, within which it is not replaced
my $LOOKS = 1;             # seconds between looks at the files that a zygote has loaded

# Statements that may change where modules are found, if what they say is not all there to be read
my $PLAIN_LIB = qr{(?:^|(?<=[;{}]))\s*use\s+lib\s+(?:qw\s*(?:\([^()]*\)|/[^/]*/|\{[^{}]*\}|\[[^]]*\])
    | (?: '[^']*' | "(?:[^"\$\@\\]|\$(?:FindBin::)?(?:Real)?Bin\b)*" | \$(?:FindBin::)?(?:Real)?Bin\b
    | (?:File::Basename::)?dirname\b | __FILE__ | [\s,().] )+ )\s*;}mx;
my $OTHER_LIB = qr/\blib\s*->|\blib\b["';]|\buse\s+lib\b|\bINC\b|\blocal::lib\b/;

my ($here, %environment, @libraries, @handles);
my @zygotes;    # by their place: { pid, names, state, files, read, used, looked }
my %known;      # script -> what a process without its modules has shown
my $clock = 0;  # counts requests: the zygote used least recently goes

# Return the first descriptor of the links, and that after the last.
sub links { return $FIRST_LINK, $FIRST_LINK + $LINKS }

# Note what zygotes start with. handles: of the descriptors for links.
sub remember {
    my ($directory, $variables, $path, @links) = @_;
    ($here, @handles) = ($directory, @links);
    %environment = map { $_ => $variables->{$_} } grep { !/\A(?:LANG|LC_|XSWITCH_)/ } keys %$variables;
    @libraries = @$path;
}

# Run a request's script; return its wait status, nothing where its zygote has ended.
sub run {
    my ($file, $lines) = @_;
    $clock++;
    my $known = recall($file);
    my $place = $known ? place_for($known, $lines) : 0;
    for (1, 2) {
        start($place) unless $zygotes[$place];
        my $expected = $place ? $known->{path} : '';
        last if XSwitch::Protocol::tell($handles[$place], 'run', $known ? 0 : 1, $expected, $lines);
        end($place);    # it was not there any more
        $place = 0;
    }
    $zygotes[$place]{used} = $clock;
    while (my ($what, @texts) = XSwitch::Protocol::hear($handles[$place])) {
        return $texts[0] if $what eq 'ended';
        learn($file, @texts) if $what eq 'learned';
    }
    end($place);
    return;
}

# Return what is known of a script, while its files are unchanged.
sub recall {
    my ($file) = @_;
    my $known = $known{$file} or return;
    my $own = $known->{own};
    return $known unless grep { $own->{$_} ne XSwitch::State::signature($_) } keys %$own;
    delete $known{$file};
    return;
}

# ------------------------------------------------------------------------------------------- what a run has shown

sub learn {
    my ($file, $path, $overrides, %modules) = @_;
    %known = () if keys %known >= $MAX_SCRIPTS;
    my $directory = $file =~ s{[^/]*\z}{}r;
    my %own = map { (m{\A/} ? $_ : $directory . $_) => 1 } grep { m{[/.]} && !installed($_) } values %modules;
    my $known = { path => $path, overrides => $overrides, modules => \%modules, names => [], refusals => 0, warns => 0 };
    $known->{own} = { map { $_ => XSwitch::State::signature($_) } $file, keys %own };
    $known{$file} = $known;
    my @path = split /\0/, $path, -1;
    my ($first) = grep { $path[$_] eq $libraries[0] } 0 .. $#path;
    return unless defined $first && !grep({ $_ eq 'CODE' } @path) && "@path[$first .. $first + $#libraries]" eq "@libraries";
    $known->{front} = [map { m{\A/} ? $_ : $directory . $_ } @path[0 .. $first - 1]];
    my %texts = map { $_ => code_of($_) } keys %{ $known->{own} };
    return if grep { !defined || s/$PLAIN_LIB//gr =~ $OTHER_LIB } values %texts;
    my ($first_line) = $texts{$file} =~ /\A([^\n]*)/;
    $known->{warns} = $first_line =~ /\A#!.*perl.*\s-\w*w/ ? 1 : 0;
    my %met;
    $known->{names} = [grep { !/\A(?:strict|warnings|lib)\z/ } named($file, $known, \%texts, \%met)];
}

# Return a file's code without its documentation and comments.
sub code_of {
    my ($file) = @_;
    return unless -f $file;
    open my $handle, '<', $file or return;
    my $text = do { local $/; <$handle> } // '';
    $text =~ s/^__(?:END|DATA)__\b.*//ms;
    $text =~ s/^=[a-zA-Z].*?(?:^=cut\b[^\n]*|\z)//gms;
    return $text =~ s/^\s*#(?!!).*//gmr;
}

# Return the names of the installed modules that a file uses, and those that its own modules do, in this order.
sub named {
    my ($file, $known, $texts, $met) = @_;
    my @names;
    for my $name ($texts->{$file} =~ /(?:^|[;{}])\s*use\s+([A-Za-z]\w*(?:::\w+)*)/gm) {
        my $found = $known->{modules}{ $name =~ s{::}{/}gr . '.pm' } // next;
        next if $met->{$name}++;
        push @names, installed($found) ? $name : exists $texts->{$found} ? named($found, $known, $texts, $met) : ();
    }
    return @names;
}

sub installed {
    my ($file) = @_;
    for (@libraries) { return 1 if index($file, "$_/") == 0 }
    return 0;
}

# -------------------------------------------------------------------------------------------------------- zygotes

# Return the place of a zygote that has the modules of a script; 0, that without modules, while there is none.
sub place_for {
    my ($known, $lines) = @_;
    my @names = @{ $known->{names} } or return 0;
    my $wanted = join ' ', $known->{warns}, @names;
    my ($place) = grep { $zygotes[$_] && $zygotes[$_]{names} eq $wanted } 1 .. $LINKS - 1;
    my $line = (split /\n/, $lines)[1];
    if (!$place) {
        $place = $known->{refusals} < $MAX_REFUSALS && room() or return 0;
        start($place);
        $zygotes[$place]{names} = $wanted;
        $zygotes[$place]{variables} = variables($line);
        XSwitch::Protocol::tell($handles[$place], 'load', $line, $known->{warns}, @names);
        return 0;
    }
    my $zygote = $zygotes[$place];
    return 0 if !$zygote->{files} && !has_loaded($place, $known);
    if ($zygote->{looked} + $LOOKS <= time || $zygote->{looked} > time) {
        $zygote->{looked} = time;
        if (grep({ $zygote->{files}{$_} ne XSwitch::State::signature($_) } keys %{ $zygote->{files} })
            || grep { hidden($zygote, $libraries[$_], [@libraries[$_ + 1 .. $#libraries]]) } 0 .. $#libraries) {
            end($place);
            return 0;
        }
    }
    return suits($zygote, $known, $line) ? $place : 0;
}

# Return a free place, or that of the zygote used least recently, which ends; 0 where all are in use.
sub room {
    my ($free) = grep { !$zygotes[$_] } 1 .. $LINKS - 1;
    return $free if $free;
    my ($place) = sort { $zygotes[$a]{used} <=> $zygotes[$b]{used} } 1 .. $LINKS - 1;
    return 0 if $zygotes[$place]{used} + $IN_USE > $clock;
    end($place);
    return $place;
}

sub variables {
    my ($line) = @_;
    return { map { split /=/, $_, 2 } XSwitch::Protocol::words($line) };
}

# Take a zygote's word that it has loaded its modules, if it is there.
sub has_loaded {
    my ($place, $known) = @_;
    my $zygote = $zygotes[$place];
    my $ready = '';
    vec($ready, $FIRST_LINK + $place, 1) = 1;
    return 0 unless select $ready, undef, undef, 0;
    my ($what, @texts) = XSwitch::Protocol::hear($handles[$place]);
    if (($what // '') ne 'loaded') {
        end($place);
        $known->{refusals}++;
        $known->{names} = [grep { $_ ne ($texts[0] // '') } @{ $known->{names} }];
        return 0;
    }
    my $count = shift @texts;
    $zygote->{read} = [splice @texts, 0, $count];
    $zygote->{overrides} = shift @texts;
    $zygote->{modules} = {@texts};
    $zygote->{files} = { map { $_ => XSwitch::State::signature($_) } grep { m{\A/} } values %{ $zygote->{modules} } };
    $zygote->{tops} = {};
    push @{ $zygote->{tops}{ (split m{/|\.pm\z})[0] } }, $_ for keys %{ $zygote->{modules} };
    $zygote->{looked} = 0;
    if (grep { ((stat)[10] // 0) >= $zygote->{started} } keys %{ $zygote->{files} }) {
        end($place);    # it may have loaded what was there before
        return 0;
    }
    return 1;
}

# Would this script have loaded just these modules in this request?
sub suits {
    my ($zygote, $known, $line) = @_;
    my $suits = $known->{suits}{ $zygote->{pid} } //= do {
        my $modules = $known->{modules};
        my @others = grep { ($modules->{$_} // '') ne $zygote->{modules}{$_} } keys %{ $zygote->{modules} };
        !@others && $known->{overrides} eq $zygote->{overrides} ? 1 : 0;
    };
    return 0 unless $suits;
    for (@{ $known->{front} }) { return 0 if hidden($zygote, $_, \@libraries) }
    my @read = @{ $zygote->{read} } or return 1;
    my ($mine, $its) = (variables($line), $zygote->{variables});
    return !grep { ($mine->{$_} // "\0") ne ($its->{$_} // "\0") } @read;
}

# Is there a file in this directory that would be found before one of those that a zygote has loaded from others?
sub hidden {
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

# Start the zygote of a place.
sub start {
    my ($place) = @_;
    socketpair my $ours, my $its, Socket::AF_UNIX(), Socket::SOCK_STREAM(), 0 or die "socketpair: $!";
    my $pid = fork // die "fork: $!";
    if (!$pid) {
        POSIX::dup2(fileno $its, 0);
        POSIX::dup2($DATA, 1);
        POSIX::dup2($ERRORS, 2);
        %ENV = %environment;
        { exec { $^X } $^X, "${here}perl_zygote.pl" }
        POSIX::_exit(127);
    }
    POSIX::dup2(fileno $ours, $FIRST_LINK + $place);
    fcntl $handles[$place], 2, 1;    # F_SETFD, FD_CLOEXEC
    $zygotes[$place] = { pid => $pid, names => '', used => $clock, started => time, looked => 0 };
}

# End the zygote of a place, for good.
sub end {
    my ($place) = @_;
    my $zygote = delete $zygotes[$place] or return;
    POSIX::dup2($DATA + 1, $FIRST_LINK + $place);    # /dev/null
    fcntl $handles[$place], 2, 1;
    return unless $zygote->{pid};
    kill KILL => $zygote->{pid};
    waitpid $zygote->{pid}, 0;
}

# A process has ended, and its number may be another's now.
sub ended {
    my ($pid) = @_;
    for (grep { $zygotes[$_] && $zygotes[$_]{pid} == $pid } 0 .. $#zygotes) { $zygotes[$_]{pid} = 0; end($_) }
}

sub end_all { end($_) for 0 .. $LINKS - 1 }

# Is every child of this process a zygote? Others are what a script has left, and those that have ended are reaped.
sub alone {
    my %ours = map { $_->{pid} => 1 } grep { $_ } @zygotes;
    open my $children, '<', "/proc/$$/task/$$/children" or return 0;
    for my $pid (split ' ', <$children> // '') { return 0 if !$ours{$pid} && waitpid($pid, 1) == 0 }    # WNOHANG
    return 1;
}

1;
