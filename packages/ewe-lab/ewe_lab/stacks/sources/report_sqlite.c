/* report.h on SQLite, by its C interface. DATABASE: a file. Static SQL is prepared once for a connection. */
#include "report.h"
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

enum { BUSY_MS = 5000 };

struct connection {
    sqlite3 *handle;
    sqlite3_stmt *prepared; /* STATEMENT */
};

static int failed(struct report *report, struct connection *connection)
{
    int code = sqlite3_errcode(connection->handle);

    report_fail(report, code == SQLITE_BUSY || code == SQLITE_CANTOPEN || code == SQLITE_IOERR ? 503 : 500, "%s: %s",
                DATABASE, sqlite3_errmsg(connection->handle));
    return code == SQLITE_IOERR || code == SQLITE_CANTOPEN || code == SQLITE_NOTADB ? LOST : FAILED;
}

struct connection *db_connect(struct report *report)
{
    struct connection *made = calloc(1, sizeof *made);

    if (made == NULL) {
        report_fail(report, 500, "no memory");
        return NULL;
    }
    if (sqlite3_open_v2(DATABASE, &made->handle, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK) {
        failed(report, made);
        db_close(made);
        return NULL;
    }
    sqlite3_busy_timeout(made->handle, BUSY_MS);
    sqlite3_limit(made->handle, SQLITE_LIMIT_ATTACHED, 0); /* a statement of a visitor reaches no other file */
    return made;
}

int db_run(struct connection *connection, struct report *report)
{
    int dynamic = report->statement[0] != '\0', code;
    sqlite3_stmt *asked = dynamic ? NULL : connection->prepared;

    if (asked == NULL) {
        const char *text = dynamic ? report->statement : STATEMENT;
        if (sqlite3_prepare_v3(connection->handle, text, -1, dynamic ? 0 : SQLITE_PREPARE_PERSISTENT, &asked, NULL)
            != SQLITE_OK)
            return failed(report, connection);
        if (!dynamic)
            connection->prepared = asked;
    }
    if (sqlite3_column_count(asked) != 2) {
        sqlite3_finalize(asked);
        connection->prepared = dynamic ? connection->prepared : NULL;
        return report_fail(report, 500, "the statement does not select a text and a number");
    }
    report_table(report);
    while ((code = sqlite3_step(asked)) == SQLITE_ROW) {
        const char *address = (const char *)sqlite3_column_text(asked, 0);
        report_row(report, address ? address : "", sqlite3_column_int64(asked, 1));
    }
    report_table_end(report);
    code = code == SQLITE_DONE ? DONE : failed(report, connection);
    if (dynamic)
        sqlite3_finalize(asked);
    else
        sqlite3_reset(asked);
    return code;
}

void db_close(struct connection *connection)
{
    sqlite3_finalize(connection->prepared);
    sqlite3_close(connection->handle);
    free(connection);
}
