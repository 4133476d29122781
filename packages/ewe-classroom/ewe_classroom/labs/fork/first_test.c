/* The first test of this lab: make check. It sends a few requests, and stops at the first failure. */

#include "clients.h"

#define CLIENTS 10 /* that come in the last step */

int main(void)
{
    begin();
    step("One client gets hello.txt, and its connection ends.", 0);
    int client = new_client();
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "The client has sent a request, and gets no response.");
    expect_end(client, 0, "The connection stays open after the response: a process still has a copy of it.");

    step("Two clients are served at once.", 0);
    int slow = new_client();
    client = new_client();
    say(slow, HALF);
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "One client has sent half a request, and the second client waits for it.");
    say(slow, REST);
    expect(slow, BODY, "The first client has sent the rest of its request, and gets no response.");

    step("Each child that has ended is reaped.", 0);
    int clients[CLIENTS];
    for (int number = 0; number < CLIENTS; number++) {
        clients[number] = new_client();
        say(clients[number], HALF);
    }
    for (int number = 0; number < CLIENTS; number++) {
        say(clients[number], REST);
        expect(clients[number], BODY, "One of ten clients gets no response.");
        expect_end(clients[number], 0, "The connection of one of ten clients stays open.");
    }
    for (int waits = RESPONSE_TIMEOUT_S * (1000000 / LOOK_PAUSE_US); zombies() > 0; waits--) {
        if (waits == 0)
            fail("Ten children have ended, and %d of them are zombies: call waitpid().", zombies());
        usleep(LOOK_PAUSE_US);
    }
    return passed();
}
