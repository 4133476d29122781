# May a script run in the Perl engine's own process, and the next script still find the state of a new process?
#
# With isolation = "auto" only a script that is known to be exact does. The answer comes from the script's text,
# before its first run. In doubt the script runs in a separate process (perl_fork.pl), which is slower and always
# right. After the run, %INC shows whether the text named all modules: if not, the engine starts again.

package XSwitch::Exact;

use strict;
use warnings;

# The modules that a script may use: pragmas that act on its text alone, and modules whose functions change no
# lasting table or setting. Their variables can be set only by name, which $SHARED finds.
our @NAMED = qw(
    strict warnings utf8 feature integer constant vars bytes
    CGI Carp Cwd Data::Dumper Digest::MD5 Digest::SHA Encode Fcntl File::Basename File::Spec File::Spec::Functions
    JSON::PP List::Util MIME::Base64 POSIX Scalar::Util Text::ParseWords Time::HiRes Time::Local
);
my %named = map { $_ => 1 } @NAMED;

# Modules that these load, at once or later; some of them are in the preloaded parent's list.
my %listed = map { s{::}{/}gr . '.pm' => 1 } @NAMED, qw(
    AutoLoader B CGI::File::Temp CGI::Util Config Digest::base Encode::Alias Encode::Config Encode::Encoding
    Encode::MIME::Name Errno Exporter Exporter::Heavy Carp::Heavy File::Glob File::Path File::Spec::Unix File::Temp
    HTML::Entities HTML::Parser IO IO::File IO::Handle IO::Seekable JSON::PP::Boolean SelectSaver Storable Symbol
    Sub::Util Tie::Hash XSLoader DynaLoader overload overloading parent re warnings::register bytes_heavy
);
$listed{'bytes_heavy.pl'} = 1;

my $NAME = qr/[A-Za-z_]\w*(?:(?:::|')\w+)*/;

# Constructs that reach beyond the script itself: other code, other modules' settings, the process
my $BEGINS = qr/(?:^|[;{}])\s*/m;    # the beginning of a statement
my $REACHES = qr{
    \b(?: INIT|CHECK|UNITCHECK)\s*\{ | \bsub\s+(?:DESTROY|AUTOLOAD|\w*(?:::|')\w) | ${BEGINS}package\b
    | \b(?: ISA|UNIVERSAL|GLOBAL|Internals|setlocale|setpriority|setpgrp|setpgid|setsid|tcsetpgrp|syscall|ioctl|chroot
        | fork|exec|waitpid|CHLD|CLD|set[re]?[ug]id|setre[ug]id|setres[ug]id|set_prototype
        | delete_package|dup2|fesetround|tzname
        | fileparse_set_fstype|define_alias|define_encoding|safe_level|perlio_ok )\b
    | \b(?:wait\s*(?:[(;=!<>)\}\-|&]|or\b|and\b|$)|nice\s*[(\d\$+\-]|tie\s*[(\$\@%*]|tie\s+(?:my|our|local)\b)
    | \beval\b(?!\s*\{) | \bdo\s*(?:[("'\$]|qq?\b|[A-Z_]\w*(?:::|->|\()) | \bno\s+strict\b
    | \b(?:seek|tell|stat|fileno)\b\W*DATA\b | \blib\s*-> | ->\s*(?:un)?import\b | [\$\@%&*]\{?\s*(?:main)?(?:::)?INC\b
    | (?:$BEGINS|[(,=\\]\s*|\blocal\s*)\*(?:\{|\$|$NAME\s*=(?!=|~)) | \$\{?\^(?![TOXVFW]\b)
    | \b(?:open|close)\b\W{0,3}STD(?:IN|OUT|ERR)\b | \bopen\b[^;]*?["'][<>+\s]*-\s*["'] | <(?:ARGV)?> | <<>>
    | \bPOSIX\s*(?:::|')\s*(?:close|dup|lseek|read|write)\b | (?<![\$\@%&>\w])(?:dup|lseek)\s*[(\d\$] | \bCwd\s*(?:::|')\s*chdir\b | \b(?:overload|mro)\s*(?:::|')
    | [\$%]\{?\s*::\s*(?!\w)    # a table of names
    # A descriptor by its number, which may be the engine's own. A mode stands alone before a standard descriptor
    | \b(?:fdopen|new_from_fd)\b | ->\s*can\b | [<>]&=?["'\s,]*(?:[3-9]|\d\d|[\$\@])
    | ["'(\{]\s*(?:\+?[<>]|>>)&=?\s*["')\}](?!\s*,\s*(?:[0-2]\s*(?:[;),|]|or\b|$)|\\?\*?STD(?:IN|OUT|ERR)\b))
    | \$(?:\^[OXV]|[:<>()])\s*=(?![=~]) | =\s*\(?\s*times\b
    # s///ee, but neither "->encode" nor an "else" behind a brace
    | (?:[/\}\])|!\#~,]|(?<!-)>)(?!else\b)[msixpodualngcr]*e[msixpodualngcr]*e[msixpodualngcer]*\b
}x;
my $SHARED = qr{[\$\@%&*]\#?\{?\s*\^?(?:::)?((?:\w+(?:::|'(?=[A-Za-z_])))+)(\w*)};
# A name that begins with a capital letter, with the packages before it; then what follows the name of a package
my $PATH = qr{(?<![\$\@%&*>:'"\w])(?:(?:main)?::)*+([A-Z]\w*+(?:::\w++)*+)(::|\s*->)?};
my $SYMBOLIC = qr/[\$\@%&]\{?\s*["'\$]/;    # names may be made at run time here, without `use strict`
my $STRICT = qr/^\s*use\s+(?:strict\s*;|v?5\.0?[1-9][2-9])/m;
my $BODY = qr/(?<body>\{(?:[^{}]++|(?&body))*+\})/;
my $RETURNS = qr/\breturn\s*(?:[;(\$\@%"'\d\\\[{!\-]|(?:if|unless|undef)\b)/;    # an error outside of a sub

# Does this text contain only constructs whose effects can be undone?
sub is_exact {
    my ($text) = @_;
    return 0 if $text =~ /\A#!(?!.*\bperl[\w.]*(?:\s+-w)?\s*$)/m;
    return 0 if $text =~ /\A(?:\xEF\xBB\xBF|\xFE\xFF|\xFF\xFE|.?\0)/s;
    if ($text !~ /<</) {    # such lines in a here-document would not be documentation or comments
        $text =~ s/^=[a-zA-Z].*?(?:^=cut\b[^\n]*|\z)//gms;
        $text =~ s/^\s*#.*//gm;
    }
    return 0 if $text =~ $REACHES || $text =~ $SYMBOLIC && $text !~ $STRICT;
    return 0 if $text =~ s/\bsub\b[^{};]*$BODY//gr =~ $RETURNS;
    while ($text =~ /$SHARED/g) {
        my ($package, $name) = ($1, $2);
        return 0 unless $package =~ /\A(?:main)?(?:::|')\z/ && $name ne '';
    }
    my %used;
    while ($text =~ /(?:${BEGINS}(use|no)|\b(require))\b\s*([^;]*)/g) {
        my ($word, $what) = ($1 // $2, $3);
        next if $what =~ /\Av?5[\d._]*\s*\z/;
        my ($module, $imports) = $what =~ /\A($NAME)(.*)/s or return 0;
        return 0 unless $named{$module};
        next if $module eq 'constant' || $module eq 'vars';
        return 0 if $word ne 'require' && ($imports =~ /[\$\@%&*]\w/ || $module eq 'CGI' && $imports =~ /['"(\s]-/);
        return 0 if $imports =~ /\b(?:close|chdir|read|write)\b/;    # of POSIX and of Cwd
        $used{$module} = 1;
    }
    while ($text =~ /$PATH/g) {
        my ($package, $is_package) = ($1, $2);
        next if $used{$package} || !$is_package && $package !~ s/::\w+\z//;    # of a function, what stands before it
        return 0 unless $used{$package} || $package =~ /\A(?:STD(?:IN|OUT|ERR)|DATA|ARGV|ENV)\z/;
    }
    return 1;
}

# Return those of the loaded modules (keys of %INC) that are not in the lists above.
sub unlisted_modules { return grep { !$listed{$_} } @_ }

1;
