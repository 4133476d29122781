/* report.h on PostgreSQL, by its C interface. DATABASE: a connection string with a connect_timeout.
 * Static SQL is prepared once for a connection. */
#include "report.h"
#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>

struct connection {
    PGconn *handle;
    int prepared;
};

struct connection *db_connect(struct report *report)
{
    struct connection *made = calloc(1, sizeof *made);

    if (made == NULL) {
        report_fail(report, 500, "no memory");
        return NULL;
    }
    made->handle = PQconnectdb(DATABASE);
    if (PQstatus(made->handle) != CONNECTION_OK) {
        report_fail(report, 503, "%s", PQerrorMessage(made->handle));
        db_close(made);
        return NULL;
    }
    return made;
}

static int failed(struct report *report, struct connection *connection, PGresult *result)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    /* Only the server gives a state, and 57P is that of one which ends: the connection is closed right after it */
    int lost = state == NULL || strncmp(state, "57P", 3) == 0;

    report_fail(report, lost ? 503 : 500, "%s", PQerrorMessage(connection->handle));
    PQclear(result);
    return lost ? LOST : FAILED;
}

int db_run(struct connection *connection, struct report *report)
{
    int dynamic = report->statement[0] != '\0';
    PGresult *result;

    if (!dynamic && !connection->prepared) {
        result = PQprepare(connection->handle, "report", STATEMENT, 0, NULL);
        if (PQresultStatus(result) != PGRES_COMMAND_OK)
            return failed(report, connection, result);
        PQclear(result);
        connection->prepared = 1;
    }
    if (dynamic)
        result = PQexec(connection->handle, report->statement);
    else
        result = PQexecPrepared(connection->handle, "report", 0, NULL, NULL, NULL, 0);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        return failed(report, connection, result);
    if (PQnfields(result) != 2) {
        PQclear(result);
        return report_fail(report, 500, "the statement does not select a text and a number");
    }
    report_table(report);
    for (int row = 0; row < PQntuples(result); row++)
        report_row(report, PQgetvalue(result, row, 0), strtoll(PQgetvalue(result, row, 1), NULL, 10));
    report_table_end(report);
    PQclear(result);
    return DONE;
}

void db_close(struct connection *connection)
{
    PQfinish(connection->handle);
    free(connection);
}
