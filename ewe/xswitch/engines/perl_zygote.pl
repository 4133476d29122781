# A zygote: a Perl interpreter that forks for each request. The child runs the script, and its state ends with it.
#
# The child does not evaluate the script's text. perl reads the script as the rest of this very file: the last line
# below runs while perl is still compiling. It serves, forks, and returns only in the child, after the script has
# taken the file's place under its descriptor (perl_child.pl). Compiling, running and ending are therefore perl's
# own, as in `perl script`: BEGIN to END, exit and die, caller, DATA, warnings. Nothing may follow the last line.

BEGIN { require((__FILE__ =~ m{\A/} ? '' : './') . __FILE__ =~ s{[^/]*\z}{perl_child.pl}r); XSwitch::Zygote::serve(__FILE__) }
