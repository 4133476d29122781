/* Counts its visitors, and shows what persistence needs: http://127.0.0.1:4000/libcgi-bin/counter.so
 *
 * initfunc() prepares, once, what all requests use. Here that is the time of the start; it could be a connection to
 * a database. Several threads may be inside processfunc() at once. `visits++` would then lose visits: two threads
 * read 41, and both write 42. The lock lets one thread count after the other.
 *
 * The count is that of this process: each worker process of the server has its own.
 */
#include <ewe_libcgi.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long visits;
static char since[32];

void initfunc(void)
{
    time_t now = time(NULL);
    struct tm parts;
    strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
}

void processfunc(char *input)
{
    long visit;

    (void)input;
    pthread_mutex_lock(&lock);
    visit = ++visits;
    pthread_mutex_unlock(&lock);

    lputs("Content-Type: text/plain\n\n");
    lprintf("visit %ld of process %ld since %s\n", visit, (long)getpid(), since);
}

/* Is called before the library is unloaded. Nothing of this library needs it: its memory goes with it. A library that
 * has a file or a connection open closes it here. */
void terminatefunc(void)
{
}
