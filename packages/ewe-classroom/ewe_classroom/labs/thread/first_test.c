/* The first test of this lab: make check. It sends a few requests, and stops at the first failure. */

#include "clients.h"

#define DESCRIPTORS 64 /* that the server may have in the last step */
#define CLIENTS 100    /* that connect to it there */

int main(void)
{
    begin();
    step("One client gets hello.txt.", 0);
    int client = new_client();
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "The client has sent a request, and gets no response.");

    step("Two clients are served at once.", 0);
    int slow = new_client();
    client = new_client();
    say(slow, HALF);
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "One client has sent half a request, and the second client waits for it.");
    say(slow, REST);
    expect(slow, BODY, "The first client has sent the rest of its request, and gets no response.");

    step("The server survives its limit of descriptors.", DESCRIPTORS);
    int clients[CLIENTS];
    for (int number = 0; number < CLIENTS; number++) {
        clients[number] = new_client();
        say(clients[number], HALF);
    }
    for (int number = 0; number < CLIENTS; number++)
        close(clients[number]);
    client = new_client();
    say(client, GET_AND_CLOSE);
    expect(client, BODY,
           "100 clients came while the server may have 64 descriptors, and have left. "
           "The next client gets no response.");
    return passed();
}
