/* Clients for first_test.c: they start your server, send requests, and say which step fails.

   A step begins with step(), which starts a new server. The program ends at the first step that fails. */

#ifndef CLIENTS_H
#define CLIENTS_H

#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define RESPONSE_TIMEOUT_S 5        /* seconds that one response may take; a server waits for 10 */
#define LOOK_PAUSE_US 20000 /* microseconds between two looks at a process */
#define BODY "hello, world\n"
#define GET "GET /hello.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define GET_AND_CLOSE "GET /hello.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
#define HALF "GET /hello.txt HTTP/1.1\r\nHost: local"
#define REST "host\r\nConnection: close\r\n\r\n"
#define UNUSED __attribute__((unused)) /* no lab needs every function of this file */

static const char *title = "";
static int step_number;
static pid_t server;
static int port;
static char directory[] = "/tmp/first-test-XXXXXX";

/* End the server and its children. */
static void end_server(void)
{
    if (server > 0) {
        kill(-server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    server = 0;
}

static void end_test(void)
{
    char name[64];
    end_server();
    for (const char *const *file = (const char *const[]){"hello.txt", "large", NULL}; *file; file++) {
        snprintf(name, sizeof name, "%s/%s", directory, *file);
        unlink(name);
    }
    rmdir(directory);
}

/* Say which step fails, and why; end the program. */
static void fail(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    printf("FAILED %d. %s\n  ", step_number, title);
    vprintf(format, values);
    printf("\n");
    va_end(values);
    exit(1);
}

/* Write a file into the server's directory: `bytes` times "x", then `end`. */
static void write_file(const char *file, size_t bytes, const char *end)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%s", directory, file);
    FILE *opened = fopen(name, "w");
    if (!opened)
        fail("the test cannot write %s", name);
    while (bytes-- > 0)
        fputc('x', opened);
    fputs(end, opened);
    fclose(opened);
}

/* Make the server's directory, and find a free port. */
static void begin(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(directory))
        fail("the test cannot make a directory in /tmp");
    atexit(end_test);
    write_file("hello.txt", 0, BODY);
    int probe = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(probe, (struct sockaddr *)&address, size) < 0 ||
        getsockname(probe, (struct sockaddr *)&address, &size) < 0)
        fail("the test finds no free port");
    port = ntohs(address.sin_port);
    close(probe);
}

/* Return whether the server listens. /proc tells it: a connection would be a client. */
static bool listens(void)
{
    char line[256], wanted[64];
    bool found = false;
    snprintf(wanted, sizeof wanted, "0100007F:%04X 00000000:0000 0A", port);
    FILE *table = fopen("/proc/net/tcp", "r");
    while (table && fgets(line, sizeof line, table))
        found = found || strstr(line, wanted);
    if (table)
        fclose(table);
    return found;
}

/* Begin a step with a new server. descriptors: how many the server may have; 0: the usual number. */
static void step(const char *text, int descriptors)
{
    if (step_number++ > 0)
        printf("passed %d. %s\n", step_number - 1, title);
    title = text;
    end_server();
    server = fork();
    if (server == 0) {
        char number[16];
        struct rlimit limit = {descriptors, descriptors};
        setpgid(0, 0); /* so that kill(-server) ends the server's children, too */
        signal(SIGPIPE, SIG_DFL);
        if (descriptors > 0)
            setrlimit(RLIMIT_NOFILE, &limit);
        snprintf(number, sizeof number, "%d", port);
        execl("./server", "./server", number, directory, "4", (char *)NULL);
        _exit(127);
    }
    setpgid(server, server);
    for (int waits = RESPONSE_TIMEOUT_S * (1000000 / LOOK_PAUSE_US); !listens(); waits--) {
        if (waits == 0 || waitpid(server, NULL, WNOHANG) != 0)
            fail("./server does not listen on its port.");
        usleep(LOOK_PAUSE_US);
    }
}

/* Connect a new client. */
static int new_client(void)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval timeout = {.tv_sec = RESPONSE_TIMEOUT_S};
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    if (connect(client, (struct sockaddr *)&address, sizeof address) < 0)
        fail("The server takes no connection: it has ended.");
    return client;
}

/* Send a text. If the server has closed the connection, the next expect() says so. */
static void say(int client, const char *text)
{
    if (send(client, text, strlen(text), MSG_NOSIGNAL) < 0)
        return;
}

/* Receive until `text` has come; fail with a sentence if it does not come. */
UNUSED static void expect(int client, const char *text, const char *sentence)
{
    size_t matched = 0, length = strlen(text);
    char byte;
    while (matched < length) { /* no text of these tests repeats its beginning, so one counter is enough */
        if (recv(client, &byte, 1, 0) <= 0)
            fail("%s", sentence);
        matched = byte == text[matched] ? matched + 1 : byte == text[0];
    }
}

/* Receive until the server closes the connection. Fail if fewer than `bytes` bytes come before. */
UNUSED static void expect_end(int client, long bytes, const char *sentence)
{
    char data[65536];
    ssize_t count;
    while ((count = recv(client, data, sizeof data, 0)) > 0)
        bytes -= count;
    if (count < 0 || bytes > 0)
        fail("%s", sentence);
    close(client);
}

/* Return how many ended children the server has not reaped. */
UNUSED static int zombies(void)
{
    int count = 0;
    char name[300], state;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        int parent = 0;
        snprintf(name, sizeof name, "/proc/%s/stat", entry->d_name);
        FILE *file = atoi(entry->d_name) > 0 ? fopen(name, "r") : NULL;
        if (file && fscanf(file, "%*d (%*[^)]) %c %d", &state, &parent) == 2)
            count += state == 'Z' && parent == server;
        if (file)
            fclose(file);
    }
    closedir(processes);
    return count;
}

/* End the test: all steps pass. */
static int passed(void)
{
    printf("passed %d. %s\nAll steps pass. Next: ewe-grade, as README.md says.\n", step_number, title);
    return 0;
}

#endif
