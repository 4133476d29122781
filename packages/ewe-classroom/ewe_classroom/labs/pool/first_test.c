/* The first test of this lab: make check. It tests put() and get() of server.c, without a client.

   Each step has its own threads. The test stops at the first failure. */

#define main server_main
#include "server.c"
#undef main

#define RESPONSE_TIMEOUT_S 5           /* seconds that one step may take */
#define LOOK_PAUSE_US 10000    /* microseconds between two looks at the threads */
#define MAX_WAIT_CPU_US 100000 /* microseconds of CPU that a thread may take while it sleeps for a second */
#define SECOND_US 1000000

static int taken[ROOM + 8], taken_count, ended_count; /* of all takers; queue.lock protects them */

static void expect(bool right, const char *sentence)
{
    if (right)
        return;
    printf("FAILED: %s\n", sentence);
    exit(1);
}

/* Take items until the queue is closed, as a worker does. */
static void *take(void *argument)
{
    for (int item; (item = get()) >= 0;) {
        pthread_mutex_lock(&queue.lock);
        taken[taken_count++] = item;
        queue.busy--;
        pthread_mutex_unlock(&queue.lock);
    }
    pthread_mutex_lock(&queue.lock);
    ended_count++;
    pthread_mutex_unlock(&queue.lock);
    return argument;
}

static void *put_one_more(void *argument)
{
    put(ROOM);
    return argument;
}

/* Wait until a number that queue.lock protects has a value; return whether it has. */
static bool reaches(const int *number, int value)
{
    for (int waits = RESPONSE_TIMEOUT_S * (SECOND_US / LOOK_PAUSE_US); waits > 0; waits--) {
        pthread_mutex_lock(&queue.lock);
        bool reached = *number == value;
        pthread_mutex_unlock(&queue.lock);
        if (reached)
            return true;
        usleep(LOOK_PAUSE_US);
    }
    return false;
}

static int count_items(void)
{
    pthread_mutex_lock(&queue.lock);
    int count = queue.count;
    pthread_mutex_unlock(&queue.lock);
    return count;
}

static long cpu_us(pthread_t thread)
{
    clockid_t clock;
    struct timespec used = {0, 0};
    if (pthread_getcpuclockid(thread, &clock) == 0)
        clock_gettime(clock, &used);
    return used.tv_sec * SECOND_US + used.tv_nsec / 1000;
}

int main(void)
{
    pthread_t takers[2], giver;
    setvbuf(stdout, NULL, _IOLBF, 0);

    for (int item = 0; item < ROOM; item++)
        put(item);
    pthread_create(&giver, NULL, put_one_more, NULL);
    usleep(SECOND_US);
    expect(count_items() == ROOM, "The queue has more than ROOM items: put() did not wait while it was full.");
    expect(cpu_us(giver) < MAX_WAIT_CPU_US,
           "put() computes while the queue is full: wait with pthread_cond_wait().");
    printf("passed 1. put() waits while the queue is full.\n");

    for (int number = 0; number < 2; number++)
        pthread_create(&takers[number], NULL, take, NULL);
    expect(reaches(&taken_count, ROOM + 1), "put() still waits, although the queue has room: signal not_full.");
    bool found[ROOM + 1] = {false};
    for (int number = 0; number <= ROOM; number++) {
        expect(!found[taken[number]], "An item was taken twice.");
        found[taken[number]] = true;
    }
    printf("passed 2. Each item is taken, and put() goes on.\n");

    usleep(SECOND_US);
    expect(cpu_us(takers[0]) + cpu_us(takers[1]) < MAX_WAIT_CPU_US,
           "get() computes while the queue is empty: wait with pthread_cond_wait().");
    put(1);
    expect(reaches(&taken_count, ROOM + 2),
           "A thread waits in get(), although the queue has an item: signal not_empty.");
    printf("passed 3. get() sleeps while the queue is empty, and put() wakes it.\n");

    drain();
    expect(reaches(&ended_count, 2), "Two threads wait in get(), and drain() did not wake both.");
    /* All three have ended. ThreadSanitizer reports a thread that is not joined. */
    pthread_join(giver, NULL);
    for (int number = 0; number < 2; number++)
        pthread_join(takers[number], NULL);
    printf("passed 4. drain() wakes all threads.\nAll steps pass. Next: ewe-grade, as README.md says.\n");
    return 0;
}
