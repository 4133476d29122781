# Does the compiled code of a script keep state of one run for the next? If it does, the Perl engine (perl_state.pl)
# compiles the script again each time. The tree of operators, as the module B shows it, gives the answer.

package XSwitch::Code;

use strict;
use warnings;
no warnings 'recursion';
use B ();

my ($OUTER, $STATE, $OUR) = (1, 2, 16);    # flags of a name in a pad: PADNAMEf_OUTER (of the code around), ...
# Operators whose compiled code keeps its result, or that change the meaning of a name for later code
my $KEEPS_RESULT = qr/\A(?:once|entereval|goto|reset|tie|dbmopen)\z/;
my $KEEPS_ONE_VALUE = qr/\A(?:flip|glob)\z/;    # unless they give a list
my $CONDITIONAL = qr/\A(?:and|or|dor|cond_expr|andassign|orassign|dorassign)\z/;

# Does a sub of the script refer to a variable of the run in which it was compiled, or to another value?
sub keeps_state {
    my $code = B::svref_2object($_[0]);
    return 0 if XSwitch::State::is_library($code->FILE);
    return ref $code->const_sv->object_2svref eq 'REF' if $code->CvFLAGS & B::CVf_CONST();
    return 0 unless ${ $code->ROOT };
    my @names = grep { ref eq 'B::PADNAME' } $code->PADLIST->NAMES->ARRAY;
    return 1 if grep { ($_->FLAGS & ($OUTER | $OUR)) == $OUTER } @names;
    return code_keeps_state($code);
}

# Is there a `state` variable, a constant that is a reference, or such an operator, in this code or within it?
sub code_keeps_state {
    my ($code) = @_;
    for ($code->PADLIST->NAMES->ARRAY) {
        return 1 if ref eq 'B::PADNAME' && $_->FLAGS & $STATE && $_->PV ne '$';    # '$' belongs to a range
    }
    my @values = $code->PADLIST->ARRAYelt(1)->ARRAY;
    for my $value (@values) { return 1 if ref $value eq 'B::CV' && ${ $value->ROOT } && code_keeps_state($value) }
    return op_keeps_state($code->ROOT, 0, \@values);
}

# The same for an operator and those below. is_conditional: the operator does not always run, so a `my` there may
# show its former value.
sub op_keeps_state {
    my ($op, $is_conditional, $values) = @_;
    my $name = $op->name;
    my $gives_list = ($op->flags & B::OPf_WANT()) == B::OPf_WANT_LIST();
    return 1 if $name =~ $KEEPS_RESULT || $name =~ $KEEPS_ONE_VALUE && !$gives_list;
    return 1 if $is_conditional && $name =~ /\Apad/ && $op->private & B::OPpLVAL_INTRO();
    if ($name eq 'const') {
        my $value = ${ $op->sv } ? $op->sv : $values->[$op->targ];    # with threads, it is in the pad
        return 1 if ref $value eq 'B::IV' && $value->FLAGS & B::SVf_ROK();
    }
    $is_conditional = 0 if $name =~ /\A(?:leave|scope|lineseq)/;
    my @below;
    if ($op->flags & B::OPf_KIDS()) {
        for (my $each = $op->first; $$each; $each = $each->sibling) { push @below, $each }
    }
    if (@below && $name =~ /\A(?:sassign|undef)\z/) { return 1 if $below[-1]->name =~ /\Arv2[gc]v\z/ }
    if (ref $op eq 'B::PMOP') {
        return 1 if $op->pmflags & (B::PMf_ONCE() | B::PMf_KEEP());
        return 1 if @below && $below[0]->name eq 'const';    # whose place in the file is known
        push @below, $op->pmreplroot if ref $op->pmreplroot && ${ $op->pmreplroot };
    }
    for my $each (@below) {
        return 1 if op_keeps_state($each, $is_conditional, $values);
        $is_conditional = 1 if $name =~ $CONDITIONAL;    # the first operand always runs
    }
    return 0;
}

1;
