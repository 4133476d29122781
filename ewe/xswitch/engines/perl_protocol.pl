# Functions that the Perl engine (perl.pl) and its zygotes (perl_child.pl) share: the words of a request, its body
# as standard input, and the frames between engine and zygote.

package XSwitch::Protocol;

use strict;
use warnings;

my $PIPE = 65536;    # bytes that a pipe holds: a body up to this size needs no file
my $MAX_PIECE = 1 << 18;

# Return the words of a line of the engine protocol.
sub words {
    my @words = split /\t/, $_[0] // '', -1;
    if (index($_[0] // '', '%') >= 0) { s/%([0-9A-Fa-f]{2})/chr hex $1/ge for @words }
    return @words;
}

# Return the names and values in a line of variables, NAME=value.
sub variables {
    my $line = $_[0] // '';
    return $line =~ /([^=\t]+)=([^\t]*)/g if index($line, '%') < 0;    # one match takes a third of the time of 30
    return map { split /=/, $_, 2 } words($line);
}

# Return a handle on the request's body, `length` bytes from the handle `data`, with an end of file; nothing if the
# sender has closed its end. Dies if there is no room for the body: its rest is then still in `data`, and the engine
# must end.
sub body {
    my ($data, $length) = @_;
    my ($source, $sink, $pieces) = (undef, undef, '');
    if ($length <= $PIPE) { pipe $source, $sink or die "pipe: $!" }
    else { open $sink, '+>', undef or die "temporary file: $!"; $source = $sink }
    while ($length) {
        my $count = sysread $data, $pieces, $length < $PIPE ? $length : $PIPE, length $pieces;
        return unless $count;
        $length -= $count;
        next if $length && $source != $sink;    # a pipe gets all at once: small pieces fill its pages only in part
        while (length $pieces) {
            my $sent = syswrite($sink, $pieces) // die "no room for the body of the request: $!\n";
            substr $pieces, 0, $sent, '';
        }
    }
    sysseek $source, 0, 0 if $source == $sink;
    return $source;
}

# Clear O_NONBLOCK, which a script may have set on a descriptor that all scripts share.
sub set_blocking {
    my ($handle) = @_;
    my $flags = fcntl $handle, 3, 0;    # F_GETFL
    fcntl $handle, 4, $flags & ~04000 if $flags & 04000;    # F_SETFL, O_NONBLOCK
}

# Send texts in one frame: their number and lengths come first. Return whether the other end is open.
sub send_frame {
    my ($handle, @texts) = @_;
    my $frame = pack 'N/a*', pack '(N/a*)*', @texts;
    my $sent = 0;
    while ($sent < length $frame) {
        $sent += send($handle, substr($frame, $sent), 0x4000) // return 0;    # MSG_NOSIGNAL
    }
    return 1;
}

# Return the texts of the next frame; nothing if the other end is closed.
sub receive_frame {
    my ($handle) = @_;
    my $frame = receive_bytes($handle, 4) // return;
    return unpack '(N/a*)*', receive_bytes($handle, unpack 'N', $frame) // return;
}

sub receive_bytes {
    my ($handle, $length) = @_;
    my $text = '';
    while (length $text < $length) {
        my $left = $length - length $text;
        sysread($handle, $text, $left < $MAX_PIECE ? $left : $MAX_PIECE, length $text) or return;
    }
    return $text;
}

1;
