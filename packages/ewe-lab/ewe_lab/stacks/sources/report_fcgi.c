/* report.h as a FastCGI responder. Each process keeps one connection to the database, and serves all that ask it. */
#define _GNU_SOURCE
#include "fastcgi.h"
#include "report.h"

enum { REPORT_HEAD = 1024 };

static size_t answer(const char *query, size_t length, const char **where)
{
    static struct connection *connection;
    static struct report report;
    static char *room;
    char head[REPORT_HEAD];
    size_t begin;

    free(room);
    report_begin(&report, query, length);
    connection = report_kept(&report, connection);
    begin = report_head(&report, head, sizeof head);
    if (report.status != 200)
        report.length = 0;
    room = malloc(begin + report.length);
    if (room == NULL)
        begin = report.length = 0;
    else
        memcpy(room, head, begin);
    if (report.length > 0)
        memcpy(room + begin, report.page, report.length);
    begin += report.length;
    report_end(&report);
    *where = room;
    return begin;
}

int main(void)
{
    return serve_all();
}
