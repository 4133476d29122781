/* What all programs of report.h share: the table, the times, and what a visitor reads if there is no table. */
#define _GNU_SOURCE
#include "report.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TABLE "<table>\n<thead><tr><th>address</th><th>total</th></tr></thead>\n<tbody>\n"
#define TABLE_END "</tbody>\n</table>\n"

static int digit(char letter)
{
    return letter >= '0' && letter <= '9' ? letter - '0' : (letter | 32) >= 'a' && (letter | 32) <= 'f' ?
        (letter | 32) - 'a' + 10 : -1;
}

/* Begin a report. query: of the URL. */
void report_begin(struct report *report, const char *query, size_t length)
{
    size_t to = 0;

    memset(report, 0, offsetof(struct report, statement) + 1);
    memset(report->con, 0, sizeof report->con);
    memset(report->ret, 0, sizeof report->ret);
    report->status = 200;
    if (length < 4 || memcmp(query, "sql=", 4) != 0)
        return;
    for (size_t at = 4; at < length && query[at] != '&'; at++) {
        char letter = query[at] == '+' ? ' ' : query[at];
        if (letter == '%' && length - at > 2 && digit(query[at + 1]) >= 0 && digit(query[at + 2]) >= 0) {
            letter = (char)(digit(query[at + 1]) << 4 | digit(query[at + 2]));
            at += 2;
        }
        if (to == sizeof report->statement - 1 || letter == '\0') {
            report->statement[0] = '\0';
            report_fail(report, 500, "the statement in the query holds NUL, or is longer than 4,095 bytes");
            return;
        }
        report->statement[to++] = letter;
    }
    report->statement[to] = '\0';
}

void report_put(struct report *report, const char *text, size_t length)
{
    if (report->length + length > report->room) {
        size_t room = 2 * (report->length + length) + 8192;
        char *grown = realloc(report->page, room);
        if (grown == NULL) {
            report_fail(report, 500, "no memory for a page of %zu bytes", room);
            return;
        }
        report->page = grown;
        report->room = room;
    }
    memcpy(report->page + report->length, text, length);
    report->length += length;
}

static void put_text(struct report *report, const char *text)
{
    static const char special[] = "&<>\"'";
    static const char *const escapes[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#x27;"};

    while (*text != '\0') {
        size_t plain = strcspn(text, special);
        report_put(report, text, plain);
        text += plain;
        if (*text != '\0') {
            const char *escape = escapes[strchr(special, *text++) - special];
            report_put(report, escape, strlen(escape));
        }
    }
}

void report_table(struct report *report)
{
    report->length = 0;
    report_put(report, TABLE, sizeof TABLE - 1);
}

void report_row(struct report *report, const char *address, long long total)
{
    char rest[80];

    report_put(report, "<tr><td>", 8);
    put_text(report, address);
    report_put(report, rest, (size_t)sprintf(rest, "</td><td class=\"number\">%lld</td></tr>\n", total));
}

void report_table_end(struct report *report)
{
    report_put(report, TABLE_END, sizeof TABLE_END - 1);
}

int report_fail(struct report *report, int status, const char *format, ...)
{
    va_list more;

    va_start(more, format);
    vsnprintf(report->reason, sizeof report->reason, format, more);
    va_end(more);
    for (char *at = report->reason; *at != '\0'; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    report->status = status;
    return FAILED;
}

/* Add to two times what has passed since `began`, or store the beginning in it. */
static void clocks(double *began, double *passed)
{
    static const clockid_t which[] = {CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC};

    for (int each = 0; each < 2; each++) {
        struct timespec now;
        double ms;
        clock_gettime(which[each], &now);
        ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
        if (passed != NULL)
            passed[each] += ms - began[each];
        else
            began[each] = ms;
    }
}

struct connection *report_connect(struct report *report)
{
    double began[2];
    struct connection *connection;

    if (report->status != 200)
        return NULL;
    clocks(began, NULL);
    connection = db_connect(report);
    clocks(began, report->con);
    return connection;
}

int report_run(struct report *report, struct connection *connection)
{
    double began[2];
    int done;

    clocks(began, NULL);
    done = db_run(connection, report);
    clocks(began, report->ret);
    return done;
}

struct connection *report_kept(struct report *report, struct connection *connection)
{
    int fresh = connection == NULL;

    for (;;) {
        if (connection == NULL && (connection = report_connect(report)) == NULL)
            return NULL;
        if (report->status != 200 || report_run(report, connection) != LOST)
            return connection;
        db_close(connection);
        connection = NULL;
        if (fresh)
            return NULL;
        fresh = 1;
        report->status = 200;
    }
}

size_t report_head(const struct report *report, char *room, size_t size)
{
    if (report->status == 200)
        return (size_t)snprintf(room, size,
            "Content-Type: text/html; charset=utf-8\r\nContent-Length: %zu\r\n"
            "Server-Timing: con;dur=%.3f, ret;dur=%.3f\r\n"
            "Server-Timing: con-wall;dur=%.3f, ret-wall;dur=%.3f\r\n\r\n",
            report->length, report->con[0], report->ret[0], report->con[1], report->ret[1]);
    return (size_t)snprintf(room, size, "Status: %d %s\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n%s\n",
        report->status,
        report->status == 503 ? "Service Unavailable" : report->status == 504 ? "Gateway Timeout" : "Internal Server Error",
        report->status == 503 ? "The database does not answer. Please try again later." :
        report->status == 504 ? "The database took too long." : "The database could not make this report.");
}

void report_end(struct report *report)
{
    if (report->status != 200)
        fprintf(stderr, "report: %d, %s\n", report->status, report->reason);
    free(report->page);
    report->page = NULL;
}
