/* The report of the RDBMS paper's scenarios: total bytes by address where the status is 200, as an HTML table.
 *
 * A program is made of report.c and two more files. One speaks to a gateway, the other to a database:
 *
 *     report_cgi.c     CGI                                      report_sqlite.c   SQLite's C interface
 *     report_fcgi.c    FastCGI, keeps its connection            report_libpq.c    PostgreSQL's C interface
 *     report_lib.c     LibCGI; KEEPS says which connections     report_ecpg.pgc   PostgreSQL, embedded SQL
 *                      it keeps                                 report_odbc.c     any database with an ODBC driver
 *                                                               report_daemon.c   the database daemon, by ewe_db.h
 *
 *     cc -DDATABASE='"/tmp/access.db"' -DSTATEMENT='"SELECT ..."' report_cgi.c report.c report_sqlite.c -lsqlite3
 *
 * DATABASE says where the database is, in the words of the database's file. STATEMENT selects an address and a number.
 * A query `sql=...` has another statement, in percent-encoding, which must select a text and a number, too: dynamic
 * SQL, where the database has to understand the statement for each request. Without it the SQL is static, where the
 * interface has such a thing. (A program that runs a visitor's SQL is for measuring only.)
 *
 * The answer, from every program with the same bytes, is what the daemon's layout TABLE makes of the result. Its header
 * tells how many ms the program took to connect and to have the result: first of its CPU, then by the clock.
 *
 *     Server-Timing: con;dur=1.234, ret;dur=5.678
 *     Server-Timing: con-wall;dur=1.345, ret-wall;dur=20.123
 */
#include <stdarg.h>
#include <stddef.h>

struct report {
    int status;              /* 200, or what went wrong: 500, 503, 504 */
    char reason[512];        /* for the log, in one line */
    char *page;
    size_t length, room;
    char statement[4096];    /* dynamic SQL; "" for the static statement */
    double con[2], ret[2];   /* ms: CPU, wall */
};

/* What a database's file defines. A connection that is lost may be made again. */
enum { DONE = 0, FAILED = -1, LOST = -2 };
struct connection;
struct connection *db_connect(struct report *report);                    /* NULL: failed */
int db_run(struct connection *connection, struct report *report);        /* DONE, FAILED, LOST */
void db_close(struct connection *connection);

/* What report.c has for them. */
void report_begin(struct report *report, const char *query, size_t length);
void report_table(struct report *report);                                /* before the first row */
void report_row(struct report *report, const char *address, long long total);
void report_table_end(struct report *report);
void report_put(struct report *report, const char *text, size_t length);
int report_fail(struct report *report, int status, const char *format, ...)  /* returns FAILED */
    __attribute__((format(printf, 3, 4)));

/* What a gateway's file uses. report_connect() and report_run() measure. */
struct connection *report_connect(struct report *report);
int report_run(struct report *report, struct connection *connection);
size_t report_head(const struct report *report, char *room, size_t size);  /* and the body, if it is an error */
void report_end(struct report *report);                                    /* free it, log what failed */
/* Run on a connection that is kept: it is made if it is NULL, made again if it was lost. Returns it, NULL: none. */
struct connection *report_kept(struct report *report, struct connection *connection);
