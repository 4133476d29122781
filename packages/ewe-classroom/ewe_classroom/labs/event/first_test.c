/* The first test of this lab: make check. It sends a few requests, and stops at the first failure. */

#include "clients.h"

#define LARGE_BYTES 8000000 /* of a file that does not fit into the buffers of a connection */

int main(void)
{
    begin();
    write_file("large", LARGE_BYTES, "");

    step("One client gets hello.txt.", 0);
    int client = new_client();
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "The client has sent a request, and gets no response.");

    step("A client that sends slowly does not stop another one.", 0);
    int slow = new_client();
    client = new_client();
    say(slow, HALF);
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "One client has sent half a request, and the second client waits for it.");
    say(slow, REST);
    expect(slow, BODY, "The first client has sent the rest of its request, and gets no response.");

    step("A client that receives slowly does not stop another one.", 0);
    slow = new_client();
    client = new_client();
    say(slow, "GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    expect(slow, "200", "The request of a large file gets no response.");
    say(client, GET_AND_CLOSE);
    expect(client, BODY, "One client does not read its large response, and the second client waits for it.");
    expect_end(slow, LARGE_BYTES,
               "The rest of the large file does not come: store the bytes that send() did not take.");
    return passed();
}
