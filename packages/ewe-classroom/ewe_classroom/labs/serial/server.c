/* The serial server: one conversation after the other. Run it with: ./server PORT DIRECTORY */

#include "conversation.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s PORT DIRECTORY\n", argv[0]);
        return 2;
    }
    int listener = listen_on(argv[1]);
    /* --- solution */
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection < 0) { /* EMFILE: no descriptor is free. ECONNABORTED: the client has disconnected already */
            usleep(PAUSE_US);
            continue;
        }
        converse(connection, argv[2]);
        close(connection);
    }
    /* --- starter */
    // /* The program ends after one client. A server goes on, also when accept() fails. */
    // int connection = accept(listener, NULL, NULL);
    // converse(connection, argv[2]);
    // close(connection);
    // return 0;
    /* --- end */
}
