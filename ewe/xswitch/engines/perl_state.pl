# What the Perl engine (perl.pl) keeps of one script for the next: compiled code, and installed modules.
#
# And what it does not keep: remember() notes how the interpreter is before any script has run, forget() makes it
# so again. A script is compiled anew for each request until it is known that it need not be: its text and its
# code must show nothing that one run could leave for the next.

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
use B ();
use POSIX ();
use Time::HiRes ();

our ($file, $source, $error);    # for the two above
my $MAX_SCRIPTS = 500;     # scripts whose compiled form is kept
my $CLOSE_RANGE = 436;     # close_range(2)
my ($OUTER, $OUR) = (1, 16);    # flags of a name in a pad: PADNAMEf_OUTER and _OUR, of the code around
my $IMPORTED = 0x70;       # flags of a glob: GVf_IMPORTED_SV, _AV and _HV

# Words of a script that may leave something behind in its code, or that must be compiled to have their effect
my $UNSURE = qr{
    \b(?:state|package|tie|BEGIN|UNITCHECK|CHECK|INIT|END|format|local\s*\$\^W|__WARN__|reset)\b
    | \bbless\s*\(?\\ | \bsub\s+\w*(?:::|')\w | \beval\b(?!\s*\{) | \*(?:\{|\w[\w:]*\s*=[^=~])
    | [/\}\)\]][a-z]*o[a-z]*\s*[;,)\]\}&|?:] | [/\w\)]\s*\.\.\.?\s*/ | /[a-z]*\s*\.\. | \bm\?
}x;
my $SYMBOLIC = qr/[\$\@%&]\{?\s*["'\$]/;    # where names may be made at run time, without `use strict`
my $STRICT = qr/^\s*use\s+(?:strict\s*;|v?5\.0?[1-9][2-9])/m;
# What `use` of these does lasts: it acts on the text that follows it, or only gives names
my %LASTS = map { $_ => 1 } qw(strict warnings utf8 feature integer constant POSIX CGI);

my %scripts;               # file -> what is known of it while it is unchanged
my ($current, $present);   # the script that runs; the one whose names are in main::
my @module_ends;           # END blocks of modules that stay
my (%names, $count);       # names in main:: that are no script's; how many are in main:: now
my (%modules, @libraries);
my (%signatures, $looked); # file of an installed module -> its signature when it was loaded; when they were compared
my $no_signals = POSIX::SigSet->new;

# Note how the interpreter is before any script has run.
sub remember {
    @libraries = grep { !ref && m{\A/} } @INC;
    note_modules();
    %names = map { $_ => 1 } keys(%main::), qw(a b ARGVOUT);    # perl itself holds on to the last
    $count = keys %main::;
}

# ------------------------------------------------------------------------------------------ compiled scripts

# Return what runs a script; nothing, with $! set, where it cannot be read.
sub code_of {
    $file = $_[0];
    $current = find() or return;
    if (defined $current->{data}) { open *main::DATA, '<', \$current->{data} }
    $^W = $current->{warns};
    $source = $current->{source};
    keep($current) if $current->{runs}++ && !$current->{code} && !$current->{unsure};
    bring_names($current->{code} ? $current : undef);
    return $current->{code} || \&evaluate;
}

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
    {
        local $SIG{__WARN__} = $watch;
        REQUEST: { $code = compile() }
        $warned = 1 if $SIG{__WARN__} ne $watch;
    }
    my @names = new_names();
    my %symbols = map { $_ => $main::{$_} } @names;
    my @variables = map { $symbols{$_} } grep { is_variable($_) } @names;
    delete @main::{@names};
    if (!$code || $warned || grep({ remembers($_) } $code, map { code_in($_) } values %symbols) || !uses_lasting()) {
        $script->{unsure} = 1;
    }
    else { @$script{qw(code symbols variables)} = ($code, \%symbols, \@variables) }
}

# What perl has under a name is a glob or, where there is no more to it, a sub.
sub code_in {
    my ($symbol) = @_;
    return ref \$symbol eq 'GLOB' ? *{$symbol}{CODE} // () : ref $symbol eq 'CODE' ? $symbol : ();
}

# Does a sub of the script hold on to a variable of the run that was there when it was compiled?
sub remembers {
    my $code = B::svref_2object($_[0]);
    return 0 unless ${ $code->ROOT } && $code->FILE eq $file;
    return grep { ref eq 'B::PADNAME' && ($_->FLAGS & ($OUTER | $OUR)) == $OUTER } $code->PADLIST->NAMES->ARRAY;
}

# Is this the name of a variable or a handle, perhaps besides that of a sub? Not if it is a module's.
sub is_variable {
    my ($name) = @_;
    my $glob = \$main::{$name};
    return 0 if ref $glob ne 'GLOB' || B::svref_2object($glob)->GvFLAGS & $IMPORTED;
    return !*{$glob}{CODE} || $source =~ /[\$\@%]#?\{?\s*(?:main|::)*$name\b/;
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
    if ($INC{'CGI.pm'}) { CGI::initialize_globals() }    # its uploaded files, too
    forget_modules() if keys %INC != keys %modules;
    forget_packages() if keys %main:: != $count;
}

sub forget_variables {
    close *main::DATA if defined fileno *main::DATA;
    for my $name ($present ? @{ $present->{variables} } : ()) {
        undef $$name;
        undef @$name;
        undef %$name;
        close $name if *{$name}{IO};
    }
    return if keys %main:: == $count;
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

# From now on no signal runs a script's code.
sub forget_handlers {
    alarm 0;
    Time::HiRes::setitimer($_, 0) for 1, 2;    # ITIMER_VIRTUAL, ITIMER_PROF
    if (grep { defined } values %SIG) { defined $SIG{$_} && /\A[A-Z]/ && delete $SIG{$_} for keys %SIG }
    POSIX::sigprocmask(POSIX::SIG_SETMASK(), $no_signals);
}

# Undo what a script has done to the interpreter. First: the lowest descriptor that scripts get.
sub forget {
    my ($first_free) = @_;
    delete @SIG{qw(__WARN__ __DIE__)};
    untie %ENV;
    untie @$_ for \@ARGV, \@INC;
    untie $$_ for \($/, $\, $,, $;, $", $0);
    @INC = @libraries;
    syscall($CLOSE_RANGE, $first_free, 0x7fffffff, 0) == 0 or POSIX::close($_) for $first_free;
}

# Installed modules stay; those of the user's own go.
sub forget_modules {
    for my $key (grep { !$modules{$_} } keys %INC) {
        next if is_library($INC{$key} // '');
        my @path = split m{/}, $key =~ s/\.pm\z//r;
        my $stash = \%main::;
        while (@path > 1 && $stash) { my $glob = $stash->{ (shift @path) . '::' }; $stash = $glob && *{$glob}{HASH} }
        delete $stash->{"$path[0]::"} if $stash;
        delete $INC{$key};
        $current->{unsure} = 1 if $current;
    }
    note_modules();
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

sub signature { return join ' ', map { $_ // '' } (Time::HiRes::stat($_[0]))[9, 7, 1] }

# So do the packages of modules; those that a script itself has made go.
sub forget_packages {
    my %loaded = map { (split m{/|\.pm\z})[0] . '::' => 1 } keys %INC;
    for (grep { /::\z/ && !$names{$_} } keys %main::) {
        if ($loaded{$_}) { $names{$_} = 1 }
        else { delete $main::{$_} }
    }
    $count = keys %main::;
}

# Is this a file of an installed module?
sub is_library {
    my ($file) = @_;
    for (@libraries) { return 1 if index($file, "$_/") == 0 }
    return $file !~ m{/};
}

1;
