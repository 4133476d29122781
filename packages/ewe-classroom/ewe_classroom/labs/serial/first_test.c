/* The first test of this lab: make check. It sends a few requests, and stops at the first failure. */

#include "clients.h"

int main(void)
{
    begin();
    step("One client gets hello.txt.", 0);
    int client = new_client();
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "The client has sent a request, and gets no response.");

    step("The second client gets it, too.", 0);
    client = new_client();
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "The client has sent a request, and gets no response.");
    close(client);
    client = new_client();
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "The server serves the first client only: it has to go on after a client.");

    step("A client that disconnects early does not end the server.", 0);
    close(new_client());
    client = new_client();
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "A client has disconnected before its request. The next client gets no response.");

    step("The head of a request comes in two pieces.", 0);
    client = new_client();
    say(client, HALF);
    usleep(LOOK_PAUSE_US);
    say(client, REST);
    expect(client, BODY, "TCP carries bytes, not messages: receive until the empty line has come.");

    step("Two requests come in one piece.", 0);
    client = new_client();
    say(client, GET GET_AND_CLOSE);
    expect(client, BODY, "The first of two requests gets no response.");
    expect(client, BODY, "The bytes after the empty line belong to the next request: do not lose them.");
    return passed();
}
