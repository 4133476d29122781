/* report.h by the database demon. DATABASE: its name in the demon's settings; DEMON: the demon's address. A statement
 * goes to the demon as text, so that all of its SQL is dynamic. */
#include <ewe_db.h>

#include "report.h"

struct connection {
    ewe_db *demon;
};

struct connection *db_connect(struct report *report)
{
    struct connection *made = calloc(1, sizeof *made);

    if (made == NULL || (made->demon = ewe_db_new(DEMON)) == NULL) {
        free(made);
        report_fail(report, 500, "no memory");
        return NULL;
    }
    ewe_db_timeout(made->demon, 8000); /* less than the server's own limit */
    if (ewe_db_connect(made->demon) != 0) {
        report_fail(report, ewe_db_status(made->demon), "%s", ewe_db_error(made->demon));
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
    if (ewe_db_ask(connection->demon, DATABASE, report->statement[0] ? report->statement : STATEMENT, "TABLE") == 0)
        while ((length = ewe_db_read(connection->demon, &piece)) > 0)
            report_put(report, piece, (size_t)length);
    if (length < 0)
        return report_fail(report, ewe_db_status(connection->demon), "%s", ewe_db_error(connection->demon));
    return DONE;
}

void db_close(struct connection *connection)
{
    ewe_db_free(connection->demon);
    free(connection);
}
