# The state that the Perl engine (perl.pl) keeps from one script for the next: compiled code, and installed modules.
#
# It resets everything else: note_initial_state() notes the state of the interpreter before any script has run, and
# undo_changes() restores that state. A script is compiled again for each request until this is known to be
# unnecessary: its text and its code (perl_code.pl) must show nothing that one run could leave for the next.

package XSwitch::State;

# Code above `use strict`: no variable of the engine is visible to a script here, and no pragma applies.
sub evaluate {
    $XSwitch::State::compiled = 0;
    eval "package main; \$XSwitch::State::compiled = 1;\n#line 1 \"$XSwitch::State::name\"\n$XSwitch::State::source";
    $XSwitch::State::error = $@;    # a second die would call the script's handler a second time
}
sub compile {
    delete $XSwitch::State::{script};
    return eval "package main; sub XSwitch::State::script {\n#line 1 \"$XSwitch::State::name\"\n"
        . "$XSwitch::State::source\n} \\&XSwitch::State::script";
}

use strict;
use warnings;
no warnings qw(recursion once);
use B ();
use POSIX ();
use Time::HiRes ();

our ($file, $source, $error);    # the script; input of the two functions above, and output of the first
our $compiled;    # has evaluate() compiled the source, and begun to run it?
our $name;    # of the file, with ? for quotes and line breaks, for #line
my $MAX_SCRIPTS = 500;     # scripts whose compiled form is kept
my $CLOSE_RANGE = 436;     # close_range(2)
my $IMPORTED = 0x70;       # flags of a glob: GVf_IMPORTED_SV, _AV and _HV

# Words of a script that may leave something behind, or that only have an effect when the script is compiled
my $UNSURE = qr{
    \b(?:package|BEGIN|UNITCHECK|CHECK|INIT|END|format|local\s*\$\^W|__WARN__)\b
    | \bbless\s*\(?\\ | \bsub\s+\w*(?:::|')\w | \(\?\??\{
}x;
my $SYMBOLIC = qr/[\$\@%&]\{?\s*["'\$]/;    # names may be made at run time here, without `use strict`
my $STRICT = qr/^\s*use\s+(?:strict\s*;|v?5\.0?[1-9][2-9])/m;
# Words of a script that may reach a signal's handler or mask, a timer or the locale, also by a name made at run time
my $PROCESS = qr/sig|alarm|timer|locale|->\s*(?:can\b|\$)|(?<!&)&(?!&)\W{0,3}["'\$]/i;
# Modules for which the effect of `use` lasts: it acts on the text after it, or only imports names
my %LASTS = map { $_ => 1 } qw(strict warnings utf8 feature integer constant POSIX CGI);

my %scripts;               # file -> the facts about it while it is unchanged
my %not_exact = map { $_ => 1 } split /\n/, delete $ENV{XSWITCH_FORKED} // '';    # see has_loaded_unlisted()
my ($current, $present);   # the script that runs; the one whose names are in main::
my $next_script;           # the one that will run next, if is_exact() has read it already
my @module_ends;           # END blocks of modules that stay
my (%names, $count);       # names in main:: that belong to no script; how many are in main:: now
my (%modules, @libraries);
my (%signatures, $checked_at);    # installed module's file -> its signature when loaded; when they were compared
my $has_unlisted = 0;      # has a script loaded a module that perl_exact.pl does not list?
my ($locale, %overrides);  # of the engine: its locale; its subs that replace perl's own functions
my %module_overrides;      # such subs of modules, as CGI::Carp's die: for scripts that name the module
my $no_signals = POSIX::SigSet->new;
my %ignored;               # signals that this process ignored from its start, such as XFSZ with `file-size`

# Note the state of the interpreter before any script has run.
sub note_initial_state {
    @libraries = grep { !ref && m{\A/} } @INC;
    note_modules();
    $locale = POSIX::setlocale(POSIX::LC_ALL());
    %overrides = map { $_ => *{ $CORE::GLOBAL::{$_} }{CODE} } keys %CORE::GLOBAL::;
    %ignored = map { $_ => 1 } grep { ($SIG{$_} // '') eq 'IGNORE' } keys %SIG;
    %names = map { $_ => 1 } keys(%main::), qw(a b ARGVOUT);    # perl itself keeps a pointer to the last
    $count = keys %main::;
}

# ------------------------------------------------------------------------------------------ compiled scripts

# Return the code that runs a script; nothing, with $! set, if the file cannot be read.
sub code_of {
    $file = $_[0];
    $current = $next_script // find() or return;
    undef $next_script;
    if (defined $current->{data}) { open *main::DATA, '<', \$current->{data} }
    $^W = $current->{warns};
    $source = $current->{source};
    $name = $file =~ s/["\n]/?/gr;
    keep_compiled($current) if $current->{runs}++ && !$current->{code} && !$current->{unsure};
    switch_names($current->{code} ? $current : undef);
    for (keys %module_overrides) {
        no strict 'refs';
        my $module = B::svref_2object($module_overrides{$_})->STASH->NAME;
        *{"CORE::GLOBAL::$_"} = $module_overrides{$_} if $source =~ /\b$module\b/;
    }
    return $current->{code} || \&evaluate;
}

# The present script has failed: if evaluate() could not compile it, do so again each time. A brace too many, "} {",
# would be no error in compile().
sub note_failure { $current->{unsure} = 1 if $current && !$current->{code} && !$compiled }

# May this script run in this process (perl_exact.pl)? A script that cannot be read may, to report the error.
sub is_exact {
    $file = $_[0];
    $next_script = find() or return 1;
    return 0 if $file =~ /["\n]/;    # see $name
    return $next_script->{exact} //=
        !$not_exact{"$next_script->{signature} $file"} && XSwitch::Exact::is_exact($next_script->{source});
}

# Has the last script loaded a module that perl_exact.pl does not list? From now on it runs in a separate process.
sub has_loaded_unlisted {
    %not_exact = () if keys %not_exact >= $MAX_SCRIPTS;
    $not_exact{"$current->{signature} $file"} = 1 if $has_unlisted && $current;
    return $has_unlisted;
}

sub not_exact { return keys %not_exact }

sub find {
    my $signature = signature($file);
    my $script = $scripts{$file};
    return $script if $script && $script->{signature} eq $signature;
    my $text = '';
    open my $handle, '<', $file or return;
    1 while sysread $handle, $text, 1 << 16, length $text;
    my $data;
    $data = $1 // '' if $text =~ s/^__(?:END|DATA)__\r?$(?:\n(.*))?//ms;
    $text =~ s/\r\n/\n/g;    # as perl reads a file
    my @pods = $text =~ /^=([a-zA-Z]\w*)/mg;
    $text .= "\n\n=cut\n\n" if @pods && $pods[-1] ne 'cut';
    if (keys %scripts >= $MAX_SCRIPTS) { %scripts = (); switch_names(undef) }
    return $scripts{$file} = {
        signature => $signature,
        source => $text,
        data => $data,
        warns => $text =~ /\A#!.*perl.*\s-\w*w/ ? 1 : 0,
        timers => scalar($text =~ /setitimer/),
        reaches_process => scalar($text =~ $PROCESS),
        unsure => scalar($text =~ $UNSURE || $text =~ $SYMBOLIC && $text !~ $STRICT || $text =~ /\bno\s+strict\b/),
    };
}

# Keep a script compiled if its code leaves the next request the same state as this one.
sub keep_compiled {
    my ($script) = @_;
    switch_names(undef);
    my $warned = 0;
    my $watch = sub { $warned = 1 };
    my $code;
    no strict 'refs';    # kept globs: a call finds the sub that has the name now, not the one of compile time
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
    my @codes = ($code // (), map { code_in($_) } values %symbols);
    if (!$code || $warned || grep({ XSwitch::Code::keeps_state($_) } @codes) || !uses_lasting()) {
        $script->{unsure} = 1;
    }
    else {
        my @subs = map { ref \$_ eq 'GLOB' ? [\$_, *{$_}{CODE} // 0] : () } values %symbols;
        @$script{qw(code symbols variables subs)} = ($code, \%symbols, \@variables, \@subs);
    }
}

# Return the sub under a name. perl stores a glob there or, if nothing else has this name, the sub itself.
sub code_in {
    my ($symbol) = @_;
    return ref \$symbol eq 'GLOB' ? *{$symbol}{CODE} // () : ref $symbol eq 'CODE' ? $symbol : ();
}

# Is this the name of a variable or a handle or, if the text says so, of both a variable and a sub? No module's
# names.
sub is_variable {
    my ($name, $said) = @_;
    my $glob = \$main::{$name};
    return 0 if ref $glob ne 'GLOB' || B::svref_2object($glob)->GvFLAGS & $IMPORTED;
    return $said || !*{$glob}{CODE};
}

# Do all modules that the script uses have their effect without another compilation?
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

# Remove the present script's names from main::, and put the names of another script there, if one is given.
sub switch_names {
    my ($script) = @_;
    return if ($script // 0) == ($present // 0);
    delete @main::{ new_names() };
    $main::{$_} = $script->{symbols}{$_} for keys %{ $script->{symbols} };
    ($present, $count) = ($script, scalar keys %main::);
}

# Names without letters are perl's own.
sub new_names { return grep { !$names{$_} && /\A[A-Za-z_]\w*\z/ } keys %main:: }

# Delete global variables, modules and packages while their destructors can still write output.
sub delete_names {
    delete_variables();
    if ($INC{'CGI.pm'}) {
        CGI::initialize_globals();    # its uploaded files, too
        $CGI::LIST_CONTEXT_WARN = 1;    # restores the warning, which comes once in a process
    }
    if ($INC{'CGI/Carp.pm'}) { undef $_ for $CGI::Carp::WRAP, $CGI::Carp::CUSTOM_MSG, $CGI::Carp::DIE_HANDLER }
    my $grown = keys %INC != keys %modules && delete_modules();
    delete_packages($grown) if keys %main:: != $count;
}

sub delete_variables {
    close *main::DATA if defined fileno *main::DATA;
    clear_variables($_) for *main::a, *main::b;    # these names stay
    for my $name ($present ? @{ $present->{variables} } : ()) {
        clear_variables($name);
        if (*{$name}{IO}) { no warnings 'io'; close $name; closedir $name }
    }
    if (grep { (*{ $_->[0] }{CODE} // 0) != $_->[1] } $present ? @{ $present->{subs} } : ()) {
        delete $present->{code};    # the script has replaced one of its subs
        $present->{unsure} = 1;
    }
    elsif (keys %main:: == $count) { return }
    undef $present;
    delete @main::{ new_names() };
}

# ------------------------------------------------------------------------ after a script: undo its changes

# Return the END blocks that must run now: the script's, then those of modules that stay. Empty perl's own list.
sub end_blocks {
    my $blocks = B::end_av();
    my @script_ends;
    if ($blocks->isa('B::AV')) {
        for my $block ($blocks->ARRAY) {
            if (is_library($block->FILE)) { push @module_ends, $block->object_2svref }
            else { push @script_ends, $block->object_2svref }
        }
        $#{ $blocks->object_2svref } = -1;
    }
    return @script_ends, @module_ends;
}

# Remove handlers and ties: no signal and no tied variable may run a script's code from now on. Argument: is the
# script exact? Its text then shows all that it can do, and most scripts reach no signal: this saves system calls, and
# a look at each signal.
sub remove_handlers {
    my ($is_exact) = @_;
    untie %ENV;
    untie @$_ for \@ARGV, \@INC;
    untie $$_ for \($/, $\, $,, $;, $", $|, $0);
    return if $is_exact && $current && !$current->{reaches_process};
    alarm 0;
    Time::HiRes::setitimer($_, 0) for $current && $current->{timers} ? (1, 2) : ();    # ITIMER_VIRTUAL, _PROF
    for (grep { /\A[A-Z]/ && defined $SIG{$_} && !$ignored{$_} } keys %SIG) { delete $SIG{$_} }
    for (keys %ignored) { $SIG{$_} = 'IGNORE' if ($SIG{$_} // '') ne 'IGNORE' }
    POSIX::sigprocmask(POSIX::SIG_SETMASK(), $no_signals);
}

# Undo a script's changes to handlers, overrides, the locale and @INC, and close its descriptors. delete_names() has
# deleted its variables. Arguments: the lowest descriptor that scripts get; is the script exact (remove_handlers)?
sub undo_changes {
    my ($first_free, $is_exact) = @_;
    delete @SIG{qw(__WARN__ __DIE__)};
    remove_overrides();
    if (!$is_exact || !$current || $current->{reaches_process}) {
        POSIX::setlocale(POSIX::LC_ALL(), $locale) if POSIX::setlocale(POSIX::LC_ALL()) ne $locale;
    }
    @INC = @libraries;
    syscall($CLOSE_RANGE, $first_free, 0x7fffffff, 0) == 0 or POSIX::close($_) for $first_free;
}

# Remove subs with which scripts have replaced perl's own functions for all code that is compiled later.
sub remove_overrides {
    no warnings qw(redefine prototype);
    for my $name (keys %CORE::GLOBAL::) {
        my $glob = $CORE::GLOBAL::{$name};
        my $code = *{$glob}{CODE} // next;
        if ($overrides{$name}) { *{$glob} = $overrides{$name} if $code != $overrides{$name} }
        else {
            $module_overrides{$name} = $code if is_library(B::svref_2object($code)->FILE);
            delete $CORE::GLOBAL::{$name};
        }
    }
}

# Keep installed modules; delete the user's own. Return how many installed ones are new.
sub delete_modules {
    my $stay = 0;
    my @fresh = grep { !$modules{$_} } keys %INC;
    $has_unlisted = 1 if XSwitch::Exact::unlisted_modules(@fresh);
    for my $key (@fresh) {
        if (($INC{$key} // '') =~ m{\A/} && is_library($INC{$key})) { $stay++; next }
        my @path = split m{/}, $key =~ s/\.pm\z//r;
        my $stash = \%main::;
        while (@path > 1 && $stash) {
            my $glob = $stash->{ (shift @path) . '::' };
            $stash = $glob && *{$glob}{HASH};
        }
        delete_package($stash, "$path[0]::") if $stash && $stash->{"$path[0]::"};
        delete $INC{$key};
        $current->{unsure} = 1 if $current;
    }
    note_modules();
    return $stay;
}

# Note the loaded modules, and the signatures of their files.
sub note_modules {
    %modules = %INC;
    $signatures{$_} //= signature($_) for grep { defined } values %INC;
}

# Has an installed module changed since it was loaded? The check is made once a second.
sub libraries_changed {
    return 0 if ($checked_at // 0) == time;
    $checked_at = time;
    return defined changed_library();
}

# Return the file of an installed module that has changed since it was loaded; nothing without one. A preloaded
# parent may have read files that this user may not examine: they count as unchanged.
sub changed_library {
    for my $file (keys %signatures) {
        my $now = signature($file);
        return $file if $now ne $signatures{$file} && ($now ne '' || $! != POSIX::EACCES());
    }
    return undef;
}

# Return values that differ when a file does. An edit can keep the size and reset mtime, but not ctime.
sub signature { return join ' ', map { $_ // '' } (Time::HiRes::stat($_[0]))[9, 10, 7, 1] }

# Keep packages of modules, and packages that modules only name yet. Delete packages that a script itself has made.
sub delete_packages {
    my ($grown) = @_;    # have installed modules been loaded?
    my %loaded = map { (split m{/|\.pm\z})[0] . '::' => 1 } keys %INC;
    for my $name (grep { /::\z/ && !$names{$_} } keys %main::) {
        my @globs = globs(*{ $main::{$name} }{HASH});
        my @files = map { B::svref_2object($_)->FILE // '' } map { *$_{CODE} // () } @globs;
        my $word = $name =~ s/::\z//r;
        my $is_own = grep({ !is_library($_) && !/\A\(eval/ } @files)
            || !@files && (!$grown || $source =~ /(?:[\$\@%&*]\{?|\bpackage\s+)$word\b/);
        if ($loaded{$name} || !$is_own) { $names{$name} = 1 }
        else { delete_package(\%main::, $name) }
    }
    $count = keys %main::;
}

# Remove a package, after its variables: their destructors may still call a method of it.
sub delete_package {
    my ($stash, $name) = @_;
    my $package = *{ $stash->{$name} }{HASH};
    for my $glob (globs($package)) { clear_variables($glob) }
    %$package = ();    # otherwise its memory is lost
    delete $stash->{$name};
}

sub clear_variables {
    my ($glob) = @_;
    undef $$glob;
    undef @$glob;
    undef %$glob;
}

# Return the globs in a package and in the packages within it.
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
