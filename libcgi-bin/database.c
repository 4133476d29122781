/* A page from a database: what an address has asked for. http://127.0.0.1:4000/libcgi-bin/database.so?10.0.0.1
 *
 * The library sends a statement to the daemon ewe-dbd, which keeps connections to databases, and gets back an HTML
 * table. docs/database.md says how to start a daemon with a database `log`. If it listens elsewhere than DAEMON says:
 *
 *     cc -shared -fPIC -O2 -Iewe/libcgi -Iewe/database -DDAEMON='"unix:dbd.sock"' -o database.so database.c
 */
#include <ewe_db.h>
#include <ewe_libcgi.h>
#include <pthread.h>

#ifndef DAEMON
#define DAEMON "unix:/run/ewe-dbd.sock"
#endif
#define STATEMENT "SELECT at, request, status, bytes FROM log WHERE address = :address ORDER BY bytes DESC LIMIT 20"

/* One connection, which stays open. Threads take turns with it. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static ewe_db *db;

void initfunc(void)
{
    db = ewe_db_new(DAEMON); /* it connects at the first question */
    if (db != NULL)
        ewe_db_timeout(db, 5000); /* less than libcgi-timeout, so that the library can say what is wrong */
}

static void answer(const char *address)
{
    const char *piece;
    long length;

    ewe_db_text(db, "address", address); /* a parameter: its text never becomes a part of the statement */
    if (ewe_db_ask(db, "log", STATEMENT, "TABLE") != 0) {
        /* The visitor learns that it failed, the log learns why */
        fprintf(stderr, "database.so: %s\n", ewe_db_error(db));
        lprintf("Status: %d\nContent-Type: text/plain\n\nThe database gives no answer.\n", ewe_db_status(db));
        return;
    }
    lputs("Content-Type: text/html; charset=utf-8\n\n"
          "<!DOCTYPE html>\n<html lang=\"en\"><title>Requests</title>\n<h1>Requests</h1>\n");
    while ((length = ewe_db_read(db, &piece)) > 0)
        lwrite(piece, (size_t)length);
    if (length < 0) {
        fprintf(stderr, "database.so: %s\n", ewe_db_error(db));
        lputs("<p>The rest is missing: the database has failed.</p>\n");
    }
}

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING");

    (void)input;
    pthread_mutex_lock(&turn);
    answer(query != NULL ? query : "");
    pthread_mutex_unlock(&turn);
}
