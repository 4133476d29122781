# Loads modules into a zygote, before any request, and checks that the result is the same as within a request.
#
# The result differs if loading depends on the request or on the process (its name, number, arguments, time, random
# numbers), or leaves more than variables and code: a process, a thread, a descriptor, a handler. Then the module is
# refused. The zygote also reports the environment variables that a module reads: it serves only requests with the
# same values.

package XSwitch::Watch;

use strict;
use warnings;

my %seen;      # names of variables that were read
my $SEED = 7;    # the value of rand after it shows whether a module has called rand
# Functions that return the time or the place, called while a module is loaded: outside of subs
my $CALLS = qr/
    (?<![\$\@%&*>:'"\w{\-])
    (?:time|times|gettimeofday|clock_gettime|localtime|gmtime|getppid|getcwd|cwd|hostname|sleep|setlocale)\b
    (?!\s*(?:=>|::|['"}]))
/x;
my $BODY = qr/(?<body>\{(?:[^{}]++|(?&body))*+\})/;

# Return "loaded", the number of environment variables that were read, their names, names of CORE::GLOBAL, and files
# by keys of %INC; or "refused" and the module.
sub load {
    my ($environment, $warns, @names) = @_;
    my $restore = watch($environment);
    local $^W = $warns;
    my $refused;
    for my $name (@names) { $refused //= $name unless defined $refused || load_one($name) }
    $restore->();
    return refused => $refused if defined $refused;
    my @read = map { /\A\$ENV\{(.*)\}\z/s } keys %seen;
    my %files = map { $_ => $INC{$_} } grep { defined $INC{$_} } keys %INC;
    return loaded => scalar @read, @read, join("\0", sort keys %CORE::GLOBAL::), %files;
}

# Load a module; return whether the checks allow it.
sub load_one {
    my ($name) = @_;
    my %loaded_before = %INC;
    my $state_before = process_state();
    srand $SEED;
    my $next = rand;
    srand $SEED;
    return 0 unless eval { require($name =~ s{::}{/}gr . '.pm'); 1 };
    delete $seen{'$0'} if $INC{'CGI.pm'} && !$loaded_before{'CGI.pm'};    # CGI only tests $0 for taint mode
    return 0 if rand != $next || process_state() ne $state_before || grep { !/\A\$ENV\{/ } keys %seen;
    my @files = map { $INC{$_} } grep { !exists $loaded_before{$_} } keys %INC;
    return !grep { defined && m{\A/} && depends_on_time_or_place($_) } @files;
}

# Replace $0, $$, $^T, @ARGV and %ENV by variables that note each read; return a function that undoes this.
sub watch {
    my ($environment) = @_;
    no strict 'refs';
    no warnings 'once';
    my %was = map { $_ => \${"main::$_"} } '0', '$', "\x14";    # the last is $^T
    my ($arguments, $variables) = (\@main::ARGV, \%main::ENV);
    for my $name (keys %was) {
        tie my $watched, 'XSwitch::Watch::Scalar', $name, ${ $was{$name} };
        *{"main::$name"} = \$watched;
    }
    tie my @arguments, 'XSwitch::Watch::Arguments';
    tie my %environment, 'XSwitch::Watch::Environment', $environment;
    *main::ARGV = \@arguments;
    *main::ENV = \%environment;
    return sub {
        *{"main::$_"} = $was{$_} for keys %was;
        *main::ARGV = $arguments;
        *main::ENV = $variables;
    };
}

# Return, as a text, the state of the process that the loading of a module may change.
sub process_state {
    no warnings;
    opendir my $descriptors, '/proc/self/fd';
    opendir my $threads, '/proc/self/task';
    return join "\0", sort(readdir $descriptors), readdir $threads, waitpid(-1, 1), (stat '.')[0, 1], umask, select,
        @INC, map({ "$_$SIG{$_}" } grep { !/\A__/ } sort keys %SIG),
        $/, $\, $,, $;, $", $|, $^W, $^F, ${^OPEN}, ${^UNICODE};
}

# Does this file call for the time or the like when it is loaded?
sub depends_on_time_or_place {
    my ($file) = @_;
    open my $handle, '<', $file or return 1;
    my $text = do { local $/; <$handle> } // '';
    $text =~ s/^__(?:END|DATA)__\b.*//ms;
    $text =~ s/^=[a-zA-Z].*?(?:^=cut\b.*?$|\z)//gms;
    $text =~ s/(?:^|\s)#.*//gm;
    $text =~ s/\bqw\s*(?:\([^)]*\)|\{[^}]*\}|\[[^]]*\]|([^\s\w])[^\n]*?\g1)//g;
    $text =~ s/\bsub\b[^{};]*$BODY//g;
    $text =~ s/^\s*(?:use|no|package|require)\b[^;]*;//gm;
    return $text =~ $CALLS;
}

package XSwitch::Watch::Scalar;

sub TIESCALAR { my ($class, @name_and_value) = @_; return bless [@name_and_value], $class }
sub FETCH { $seen{"\$$_[0][0]"} = 1; return $_[0][1] }
sub STORE { $seen{"\$$_[0][0]"} = 1 }

package XSwitch::Watch::Arguments;

sub TIEARRAY { return bless [] }
sub FETCH { $seen{'@ARGV'} = 1; return undef }
sub FETCHSIZE { $seen{'@ARGV'} = 1; return 0 }
sub AUTOLOAD { $seen{'@ARGV'} = 1; return }

package XSwitch::Watch::Environment;

sub TIEHASH { my ($class, $variables) = @_; return bless $variables, $class }
sub FETCH { $seen{"\$ENV{$_[1]}"} = 1; return $_[0]{ $_[1] } }
sub EXISTS { $seen{"\$ENV{$_[1]}"} = 1; return exists $_[0]{ $_[1] } }
sub FIRSTKEY { $seen{'%ENV'} = 1; my @all = keys %{ $_[0] }; return each %{ $_[0] } }
sub NEXTKEY { return each %{ $_[0] } }
sub DESTROY { }
sub AUTOLOAD { $seen{'%ENV'} = 1; return }    # a change of the environment

1;
