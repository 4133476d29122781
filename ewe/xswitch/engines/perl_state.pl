# What the Perl engine (perl.pl) keeps of one script for the next: compiled code, and installed modules.
#
# And what it does not keep: remember() notes how the interpreter is before any script has run, forget() makes it
# so again. A script is compiled again for each request until it is known that it need not be: its text and its
# code (perl_code.pl) must show nothing that one run could leave for the next.

package XSwitch::State;

# Up here no variable of the engine is in sight of a script, and no pragma in force.
sub evaluate {
    eval "package main;\n#line 1 \"$XSwitch::State::file\"\n$XSwitch::State::source";
    $XSwitch::State::error = $@;    # to die once more would ask its handler once more
}
sub compile {
    delete $XSwitch::State::{script};
    return eval "package main; sub XSwitch::State::script {\n#line 1 \"$XSwitch::State::file\"\n"
        . "$XSwitch::State::source\n} \\&XSwitch::State::script";
}

use strict;
use warnings;
no warnings qw(recursion once);
use B ();
use POSIX ();
use Time::HiRes ();

our ($file, $source, $error);    # for the two above, and of the first
my $MAX_SCRIPTS = 500;     # scripts whose compiled form is kept
my $CLOSE_RANGE = 436;     # close_range(2)
my $IMPORTED = 0x70;       # flags of a glob: GVf_IMPORTED_SV, _AV and _HV

# Words of a script that may leave something behind, or that must be compiled to have their effect
my $UNSURE = qr{
    \b(?:package|BEGIN|UNITCHECK|CHECK|INIT|END|format|local\s*\$\^W|__WARN__)\b
    | \bbless\s*\(?\\ | \bsub\s+\w*(?:::|')\w | \(\?\??\{
}x;
my $SYMBOLIC = qr/[\$\@%&]\{?\s*["'\$]/;    # where names may be made at run time, without `use strict`
my $STRICT = qr/^\s*use\s+(?:strict\s*;|v?5\.0?[1-9][2-9])/m;
# What `use` of these does lasts: it acts on the text that follows it, or only gives names
my %LASTS = map { $_ => 1 } qw(strict warnings utf8 feature integer constant POSIX CGI);

my %scripts;               # file -> what is known of it while it is unchanged
my %not_exact = map { $_ => 1 } split /\n/, delete $ENV{XSWITCH_FORKED} // '';    # see has_reached()
my ($current, $present);   # the script that runs; the one whose names are in main::
my $found;                 # the one that will run next
my @module_ends;           # END blocks of modules that stay
my (%names, $count);       # names in main:: that are no script's; how many are in main:: now
my (%modules, @libraries);
my (%signatures, $looked); # file of an installed module -> its signature when it was loaded; when they were compared
my $reached = 0;           # has a script loaded a module that perl_exact.pl does not know?
my ($locale, %overrides);  # of the engine: its locale; its subs in the place of perl's own functions
my %lent;                  # such subs of modules, as CGI::Carp's die: for scripts that name the module
my $no_signals = POSIX::SigSet->new;

# Note how the interpreter is before any script has run.
sub remember {
    @libraries = grep { !ref && m{\A/} } @INC;
    note_modules();
    $locale = POSIX::setlocale(POSIX::LC_ALL());
    %overrides = map { $_ => *{ $CORE::GLOBAL::{$_} }{CODE} } keys %CORE::GLOBAL::;
    %names = map { $_ => 1 } keys(%main::), qw(a b ARGVOUT);    # perl itself holds on to the last
    $count = keys %main::;
}

# ------------------------------------------------------------------------------------------ compiled scripts

# Return what runs a script; nothing, with $! set, where it cannot be read.
sub code_of {
    $file = $_[0];
    $current = $found // find() or return;
    undef $found;
    if (defined $current->{data}) { open *main::DATA, '<', \$current->{data} }
    $^W = $current->{warns};
    $source = $current->{source};
    keep($current) if $current->{runs}++ && !$current->{code} && !$current->{unsure};
    bring_names($current->{code} ? $current : undef);
    for (keys %lent) {
        no strict 'refs';
        my $module = B::svref_2object($lent{$_})->STASH->NAME;
        *{"CORE::GLOBAL::$_"} = $lent{$_} if $source =~ /\b$module\b/;
    }
    return $current->{code} || \&evaluate;
}

# May this script run in this process (perl_exact.pl)? A script that cannot be read may, to report that.
sub is_exact {
    $file = $_[0];
    $found = find() or return 1;
    return $found->{exact} //= !$not_exact{"$found->{signature} $file"} && XSwitch::Exact::is_exact($found->{source});
}

# Has the script that has run loaded what its text had not told? Then it runs elsewhere from now on.
sub has_reached {
    %not_exact = () if keys %not_exact >= $MAX_SCRIPTS;
    $not_exact{"$current->{signature} $file"} = 1 if $reached && $current;
    return $reached;
}

sub not_exact { return keys %not_exact }

sub find {
    my $signature = signature($file);
    my $script = $scripts{$file};
    return $script if $script && $script->{signature} eq $signature;
    my $text = '';
    open my $handle, '<', $file or return;
    1 while sysread $handle, $text, 1 << 16, length $text;
    my $rest;
    $rest = $1 // '' if $text =~ s/^__(?:END|DATA)__\r?$(?:\n(.*))?//ms;
    $text =~ s/\r\n/\n/g;    # as perl reads a file
    my @pods = $text =~ /^=([a-zA-Z]\w*)/mg;
    $text .= "\n\n=cut\n\n" if @pods && $pods[-1] ne 'cut';
    if (keys %scripts >= $MAX_SCRIPTS) { %scripts = (); bring_names(undef) }
    return $scripts{$file} = {
        signature => $signature,
        source => $text,
        data => $rest,
        warns => $text =~ /\A#!.*perl.*\s-\w*w/ ? 1 : 0,
        timers => scalar($text =~ /setitimer/),
        unsure => scalar($text =~ $UNSURE || $text =~ $SYMBOLIC && $text !~ $STRICT || $text =~ /\bno\s+strict\b/),
    };
}

# Keep a script compiled if the next request then finds all as fresh as this one did.
sub keep {
    my ($script) = @_;
    bring_names(undef);
    my $warned = 0;
    my $watch = sub { $warned = 1 };
    my $code;
    no strict 'refs';    # a call is to what has a name now, not to the sub that had it when it was compiled
    my @globs = map { \*{"main::$_"} } $source =~ /\bsub\s+([A-Za-z_]\w*)/g;
    {
        local $SIG{__WARN__} = $watch;
        REQUEST: { $code = compile() }
        $warned = 1 if $SIG{__WARN__} ne $watch;
    }
    my @names = new_names();
    my %symbols = map { $_ => $main::{$_} } @names;
    my %said = map { $_ => 1 } $source =~ /[\$\@%]#?\{?\s*(?:(?:main)?::)*(\w+)/g;
    my @variables = map { $symbols{$_} } grep { is_variable($_, $said{$_}) } @names;
    delete @main::{@names};
    if (!$code || $warned || grep({ XSwitch::Code::remembers($_) } $code, map { code_in($_) } values %symbols) || !uses_lasting()) {
        $script->{unsure} = 1;
    }
    else {
        my @subs = map { ref \$_ eq 'GLOB' ? [\$_, *{$_}{CODE} // 0] : () } values %symbols;
        @$script{qw(code symbols variables subs)} = ($code, \%symbols, \@variables, \@subs);
    }
}

# What perl has under a name is a glob or, where there is no more to it, a sub.
sub code_in {
    my ($symbol) = @_;
    return ref \$symbol eq 'GLOB' ? *{$symbol}{CODE} // () : ref $symbol eq 'CODE' ? $symbol : ();
}

# Is this the name of a variable or a handle, or, if the text says so, of a variable and a sub? Not a module's.
sub is_variable {
    my ($name, $said) = @_;
    my $glob = \$main::{$name};
    return 0 if ref $glob ne 'GLOB' || B::svref_2object($glob)->GvFLAGS & $IMPORTED;
    return $said || !*{$glob}{CODE};
}

# Is what the script uses of such a kind that it has its effect without being compiled again?
sub uses_lasting {
    for my $module ($source =~ /\b(?:use|no)\s+([A-Za-z]\w*(?:::\w+)*)/g) {
        next unless $INC{ $module =~ s{::}{/}gr . '.pm' };
        my $import = $module->can('import');
        return 0 unless $LASTS{$module} || !$import || $import == \&Exporter::import;
    }
    return 0 if $source =~ /\buse\s+CGI\b[^;]*['"(\s]-\w/;
    for my $package ($source =~ /[\$\@%&*]\{?(\w+(?:::\w+)*)::\w/g) {
        return 0 unless $package eq 'main' || $INC{ $package =~ s{::}{/}gr . '.pm' };
    }
    return 1;
}

# ----------------------------------------------------------------------------------------------- names in main::

# Have the names of a script in main::, or of none.
sub bring_names {
    my ($script) = @_;
    return if ($script // 0) == ($present // 0);
    delete @main::{ new_names() };
    $main::{$_} = $script->{symbols}{$_} for keys %{ $script->{symbols} };
    ($present, $count) = ($script, scalar keys %main::);
}

# What has no letters is perl's own.
sub new_names { return grep { !$names{$_} && /\A[A-Za-z_]\w*\z/ } keys %main:: }

# Forget global variables, modules and packages, as long as what they hold may still say something.
sub forget_names {
    forget_variables();
    if ($INC{'CGI.pm'}) {
        CGI::initialize_globals();    # its uploaded files, too
        $CGI::LIST_CONTEXT_WARN = 1;    # it warns once in a process
    }
    if ($INC{'CGI/Carp.pm'}) { undef $_ for $CGI::Carp::WRAP, $CGI::Carp::CUSTOM_MSG, $CGI::Carp::DIE_HANDLER }
    my $grown = keys %INC != keys %modules && forget_modules();
    forget_packages($grown) if keys %main:: != $count;
}

sub forget_variables {
    close *main::DATA if defined fileno *main::DATA;
    empty($_) for *main::a, *main::b;    # these names stay
    for my $name ($present ? @{ $present->{variables} } : ()) {
        empty($name);
        if (*{$name}{IO}) { no warnings 'io'; close $name; closedir $name }
    }
    if (grep { (*{ $_->[0] }{CODE} // 0) != $_->[1] } $present ? @{ $present->{subs} } : ()) {
        delete $present->{code};    # it has put a sub in the place of another
        $present->{unsure} = 1;
    }
    elsif (keys %main:: == $count) { return }
    undef $present;
    delete @main::{ new_names() };
}

# ----------------------------------------------------------- after a script: what it has changed is as it was

# The END blocks that are to run now.
sub ends {
    my $blocks = B::end_av();
    my @own;
    if ($blocks->isa('B::AV')) {
        for my $block ($blocks->ARRAY) {
            if (is_library($block->FILE)) { push @module_ends, $block->object_2svref }
            else { push @own, $block->object_2svref }
        }
        $#{ $blocks->object_2svref } = -1;
    }
    return @own, @module_ends;
}

# From now on no signal and no tied variable runs a script's code.
sub forget_handlers {
    untie %ENV;
    untie @$_ for \@ARGV, \@INC;
    untie $$_ for \($/, $\, $,, $;, $", $|, $0);
    alarm 0;
    Time::HiRes::setitimer($_, 0) for $current && $current->{timers} ? (1, 2) : ();    # ITIMER_VIRTUAL, _PROF
    if (grep { defined } values %SIG) { defined $SIG{$_} && /\A[A-Z]/ && delete $SIG{$_} for keys %SIG }
    POSIX::sigprocmask(POSIX::SIG_SETMASK(), $no_signals);
}

# Undo what a script has done to the interpreter. First: the lowest descriptor that scripts get.
sub forget {
    my ($first_free) = @_;
    delete @SIG{qw(__WARN__ __DIE__)};
    forget_overrides();
    POSIX::setlocale(POSIX::LC_ALL(), $locale) if POSIX::setlocale(POSIX::LC_ALL()) ne $locale;
    @INC = @libraries;
    syscall($CLOSE_RANGE, $first_free, 0x7fffffff, 0) == 0 or POSIX::close($_) for $first_free;
}

# What scripts have put in the place of perl's own functions, for all code that is compiled later.
sub forget_overrides {
    no warnings qw(redefine prototype);
    for my $name (keys %CORE::GLOBAL::) {
        my $glob = $CORE::GLOBAL::{$name};
        my $code = *{$glob}{CODE} // next;
        if ($overrides{$name}) { *{$glob} = $overrides{$name} if $code != $overrides{$name} }
        else {
            $lent{$name} = $code if is_library(B::svref_2object($code)->FILE);
            delete $CORE::GLOBAL::{$name};
        }
    }
}

# Installed modules stay, and are counted; those of the user's own go.
sub forget_modules {
    my $stay = 0;
    my @fresh = grep { !$modules{$_} } keys %INC;
    $reached = 1 if XSwitch::Exact::has_reached(@fresh);
    for my $key (@fresh) {
        if (($INC{$key} // '') =~ m{\A/} && is_library($INC{$key})) { $stay++; next }
        my @path = split m{/}, $key =~ s/\.pm\z//r;
        my $stash = \%main::;
        while (@path > 1 && $stash) { my $glob = $stash->{ (shift @path) . '::' }; $stash = $glob && *{$glob}{HASH} }
        remove($stash, "$path[0]::") if $stash && $stash->{"$path[0]::"};
        delete $INC{$key};
        $current->{unsure} = 1 if $current;
    }
    note_modules();
    return $stay;
}

sub note_modules {
    %modules = %INC;
    $signatures{$_} //= signature($_) for grep { defined } values %INC;
}

# Has an installed module changed since it was loaded? Looks once a second.
sub libraries_changed {
    return 0 if ($looked // 0) == time;
    $looked = time;
    return grep { $signatures{$_} ne signature($_) } keys %signatures;
}

# What changes when a file does. An edit can keep the size and set the time back, but not ctime.
sub signature { return join ' ', map { $_ // '' } (Time::HiRes::stat($_[0]))[9, 10, 7, 1] }

# The packages of modules stay, too, and those that they only name yet; those that a script itself has made go.
sub forget_packages {
    my ($grown) = @_;    # have installed modules been loaded?
    my %loaded = map { (split m{/|\.pm\z})[0] . '::' => 1 } keys %INC;
    for my $name (grep { /::\z/ && !$names{$_} } keys %main::) {
        my @globs = globs(*{ $main::{$name} }{HASH});
        my @files = map { B::svref_2object($_)->FILE // '' } map { *$_{CODE} // () } @globs;
        my $word = $name =~ s/::\z//r;
        my $own = grep({ !is_library($_) && !/\A\(eval/ } @files)
            || !@files && (!$grown || $source =~ /(?:[\$\@%&*]\{?|\bpackage\s+)$word\b/);
        if ($loaded{$name} || !$own) { $names{$name} = 1 }
        else { remove(\%main::, $name) }
    }
    $count = keys %main::;
}

# Remove a package, after its variables: what they hold may still call a method as it dies.
sub remove {
    my ($stash, $name) = @_;
    my $package = *{ $stash->{$name} }{HASH};
    for my $glob (globs($package)) { empty($glob) }
    %$package = ();    # or its memory is lost
    delete $stash->{$name};
}

sub empty {
    my ($glob) = @_;
    undef $$glob;
    undef @$glob;
    undef %$glob;
}

# The globs in a package and in those within it.
sub globs {
    my ($stash) = @_;
    my @globs = grep { ref \$_ eq 'GLOB' } map { $stash->{$_} } grep { !/::\z/ } keys %$stash;
    return @globs, map { globs(*{ $stash->{$_} }{HASH}) } grep { /::\z/ } keys %$stash;
}

# Is this a file of an installed module?
sub is_library {
    my $file = $_[0] // '';
    for (@libraries) { return 1 if index($file, "$_/") == 0 }
    return $file =~ /\.(?:c|xs)\z/;
}

1;
