/* report.h as a LibCGI library. KEEPS says what becomes of its connections between two requests:
 *
 *     NONE     a connection for each request
 *     POOL     connections wait in a list, and a thread takes one that is free, or makes one
 *     SHARED   one connection, made by initfunc(); the threads take turns with it
 */
#include <ewe_libcgi.h>

#include "report.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { NONE, POOL, SHARED };
enum { MOST = 64 }; /* connections that wait */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct connection *waiting[MOST];
static int count;
static pid_t owner; /* a process that was forked must not use its parent's connections, nor close them */

static struct connection *taken(void)
{
    struct connection *found = NULL;

    pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        owner = getpid();
        count = 0;
    }
    if (count > 0)
        found = waiting[--count];
    pthread_mutex_unlock(&lock);
    return found;
}

static void give_back(struct connection *connection)
{
    int kept = 0;

    pthread_mutex_lock(&lock);
    if (count < MOST) {
        waiting[count++] = connection;
        kept = 1;
    }
    pthread_mutex_unlock(&lock);
    if (!kept)
        db_close(connection);
}

void initfunc(void)
{
    struct connection *first;
    struct report report;

    if (KEEPS != SHARED)
        return;
    report_begin(&report, "", 0);
    taken(); /* sets the owner */
    if ((first = report_connect(&report)) != NULL)
        give_back(first);
    report_end(&report);
}

/* After a fault a connection may be in any state, so none is touched. */
void terminatefunc(void)
{
}

static void run(struct report *report)
{
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    struct connection *connection = NULL;

    if (KEEPS == SHARED)
        pthread_mutex_lock(&turn);
    if (KEEPS != NONE)
        connection = taken();
    connection = report_kept(report, connection);
    if (connection != NULL && KEEPS == NONE)
        db_close(connection);
    else if (connection != NULL)
        give_back(connection);
    if (KEEPS == SHARED)
        pthread_mutex_unlock(&turn);
}

void processfunc(char *input)
{
    const char *query = getenv("QUERY_STRING");
    struct report report;
    char head[1024];

    (void)input;
    report_begin(&report, query ? query : "", query ? strlen(query) : 0);
    run(&report);
    lwrite(head, report_head(&report, head, sizeof head));
    if (report.status == 200)
        lwrite(report.page, report.length);
    report_end(&report);
}
