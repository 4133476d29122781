# May a script run in the Perl engine's own process, and the next script still find all as a new process would?
#
# With isolation = "auto" only what is known to be exact does. The answer comes from the script's text, before it runs
# for the first time, and errs towards a separate process (perl_fork.pl), which is slower and always right. After the
# run %INC tells whether the text had told all: if not, the engine starts again.

package XSwitch::Exact;

use strict;
use warnings;

# What a script may use: pragmas that act on its text alone, and modules that keep no table or setting which their
# functions change. Their variables can be set only by name, which $SHARED finds.
our @NAMED = qw(
    strict warnings utf8 feature integer constant vars bytes
    CGI Carp Cwd Data::Dumper Digest::MD5 Digest::SHA Encode Fcntl File::Basename File::Spec File::Spec::Functions
    JSON::PP List::Util MIME::Base64 POSIX Scalar::Util Text::ParseWords Time::HiRes Time::Local
);
my %named = map { $_ => 1 } @NAMED;

# What these load besides, at once or later; some of it is in the warm parent's list.
my %with = map { s{::}{/}gr . '.pm' => 1 } @NAMED, qw(
    AutoLoader B CGI::File::Temp CGI::Util Config Digest::base Encode::Alias Encode::Config Encode::Encoding
    Encode::MIME::Name Errno Exporter Exporter::Heavy Carp::Heavy File::Glob File::Path File::Spec::Unix File::Temp
    HTML::Entities HTML::Parser IO IO::File IO::Handle IO::Seekable JSON::PP::Boolean SelectSaver Storable Symbol Sub::Util Tie::Hash
    XSLoader DynaLoader overload overloading parent re warnings::register bytes_heavy
);
$with{'bytes_heavy.pl'} = 1;

my $NAME = qr/[A-Za-z_]\w*(?:(?:::|')\w+)*/;

# What leads to more than the script's own: other code, other modules' settings, the process
my $BEGINS = qr/(?:^|[;{}])\s*/m;    # a statement
my $REACHES = qr{
    \b(?: INIT|CHECK|UNITCHECK)\s*\{ | \bsub\s+(?:DESTROY|AUTOLOAD|\w*(?:::|')\w) | ${BEGINS}package\b
    | \b(?: ISA|UNIVERSAL|GLOBAL|Internals|setlocale|setpriority|setpgrp|setpgid|setsid|tcsetpgrp|syscall|ioctl|chroot
        | fork|exec|waitpid|CHLD|CLD|set[re]?[ug]id|setre[ug]id|setres[ug]id|set_prototype
        | fileparse_set_fstype|define_alias|define_encoding|safe_level|perlio_ok )\b
    | \b(?:wait\s*(?:[(;=!<>)\}\-|&]|or\b|and\b|$)|nice\s*[(\d\$+\-]|tie\s*[(\$\@%*]|tie\s+(?:my|our|local)\b)
    | \beval\b(?!\s*\{) | \bdo\s*(?:[("'\$]|qq?\b|[A-Z_]\w*(?:::|->|\()) | \bno\s+strict\b
    | \b(?:seek|tell|stat|fileno)\b\W*DATA\b | \blib\s*-> | ->\s*(?:un)?import\b | [\$\@%&*]\{?\s*(?:main)?(?:::)?INC\b
    | (?:$BEGINS|[(,=\\]\s*|\blocal\s*)\*(?:\{|\$|$NAME\s*=(?!=|~)) | \$\{?\^(?![TOXVFW]\b)
    | \b(?:open|close)\b\W{0,3}STD(?:IN|OUT|ERR)\b | <(?:ARGV)?> | <<>>
    | \$(?:\^[OXV]|[:<>()])\s*=(?![=~]) | =\s*\(?\s*times\b
    | [/\}\])|!#~,>][msixpodualngcr]*e[msixpodualngcr]*e[msixpodualngcer]*\b    # s///ee
}x;
my $SHARED = qr{[\$\@%&*]\#?\{?\s*\^?(?:::)?((?:\w+(?:::|'(?=[A-Za-z_])))+)(\w*)};
my $SYMBOLIC = qr/[\$\@%&]\{?\s*["'\$]/;    # where names may be made at run time, without `use strict`
my $STRICT = qr/^\s*use\s+(?:strict\s*;|v?5\.0?[1-9][2-9])/m;
my $BODY = qr/(?<body>\{(?:[^{}]++|(?&body))*+\})/;
my $RETURNS = qr/\breturn\s*(?:[;(\$\@%"'\d\\\[{!\-]|(?:if|unless|undef)\b)/;    # outside of a sub: an error

# Does this text stay within what can be undone?
sub is_exact {
    my ($text) = @_;
    return 0 if $text =~ /\A#!(?!.*\bperl[\w.]*(?:\s+-w)?\s*$)/m || $text =~ /\A(?:\xEF\xBB\xBF|\xFE\xFF|\xFF\xFE|.?\0)/s;
    if ($text !~ /<</) {    # in a text within the script such lines are no documentation and no comments
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
        my ($module, $rest) = $what =~ /\A($NAME)(.*)/s or return 0;
        return 0 unless $named{$module};
        next if $module eq 'constant' || $module eq 'vars';
        return 0 if $word ne 'require' && ($rest =~ /[\$\@%&*]\w/ || $module eq 'CGI' && $rest =~ /['"(\s]-/);
        $used{$module} = 1;
    }
    for my $package ($text =~ /(?<![\$\@%&*>:'"\w])([A-Z]\w*(?:::\w+)*)(?:::|->)/g) {
        return 0 unless $used{$package} || $package =~ /\A(?:STD(?:IN|OUT|ERR)|DATA|ARGV|ENV)\z/;
    }
    return 1;
}

# Has a run loaded what it was not known to?
sub has_reached { return grep { !$with{$_} } @_ }

1;
