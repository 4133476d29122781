/* report.h by the database daemon. DATABASE: its name in the daemon's settings; DAEMON: the daemon's address. A statement
 * goes to the daemon as text, so that all of its SQL is dynamic. */
#include <ewe_db.h>

#include "report.h"

struct connection {
    ewe_db *daemon;
};

struct connection *db_connect(struct report *report)
{
    struct connection *made = calloc(1, sizeof *made);

    if (made == NULL || (made->daemon = ewe_db_new(DAEMON)) == NULL) {
        free(made);
        report_fail(report, 500, "no memory");
        return NULL;
    }
    ewe_db_timeout(made->daemon, 8000); /* less than the server's own limit */
    if (ewe_db_connect(made->daemon) != 0) {
        report_fail(report, ewe_db_status(made->daemon), "%s", ewe_db_error(made->daemon));
        db_close(made);
        return NULL;
    }
    return made;
}

/* ewe_db.h makes a lost connection again by itself. */
int db_run(struct connection *connection, struct report *report)
{
    const char *piece;
    long length = -1;

    report->length = 0;
    if (ewe_db_ask(connection->daemon, DATABASE, report->statement[0] ? report->statement : STATEMENT, "TABLE") == 0)
        while ((length = ewe_db_read(connection->daemon, &piece)) > 0)
            report_put(report, piece, (size_t)length);
    if (length < 0)
        return report_fail(report, ewe_db_status(connection->daemon), "%s", ewe_db_error(connection->daemon));
    return DONE;
}

void db_close(struct connection *connection)
{
    ewe_db_free(connection->daemon);
    free(connection);
}
