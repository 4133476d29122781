/* report.h by ODBC. DATABASE: a connection string; DRIVERS: a directory with an odbcinst.ini, which names the drivers
 * and turns the driver manager's pooling on.
 *
 * The manager keeps what SQLDisconnect() gives back, and SQLDriverConnect() takes it from there: within one process.
 * A CGI program ends after its first request, so that its pool never holds what it needs. */
#include "report.h"
#include <sql.h>
#include <sqlext.h>
#include <stdlib.h>
#include <string.h>

struct connection {
    SQLHENV environment;
    SQLHDBC handle;
};

#ifndef PREPARES
#define PREPARES "" /* a statement that makes a new connection read-only, where the connection string cannot */
#endif

static int failed(struct report *report, SQLSMALLINT type, SQLHANDLE handle, int status)
{
    SQLCHAR state[6] = "", text[400] = "";
    SQLINTEGER number;
    SQLSMALLINT length;

    SQLGetDiagRec(type, handle, 1, state, &number, text, sizeof text, &length);
    /* Class 08: the connection is lost */
    report_fail(report, memcmp(state, "08", 2) == 0 ? 503 : status, "%s (SQLSTATE %s)", text, state);
    return memcmp(state, "08", 2) == 0 ? LOST : FAILED;
}

struct connection *db_connect(struct report *report)
{
    struct connection *made = calloc(1, sizeof *made);

    if (made == NULL) {
        report_fail(report, 500, "no memory");
        return NULL;
    }
    setenv("ODBCSYSINI", DRIVERS, 1);
    SQLSetEnvAttr(SQL_NULL_HANDLE, SQL_ATTR_CONNECTION_POOLING, (SQLPOINTER)SQL_CP_ONE_PER_DRIVER, 0);
    if (!SQL_SUCCEEDED(SQLAllocHandle(SQL_HANDLE_ENV, SQL_NULL_HANDLE, &made->environment))) {
        report_fail(report, 500, "ODBC has no memory");
        free(made);
        return NULL;
    }
    SQLSetEnvAttr(made->environment, SQL_ATTR_ODBC_VERSION, (SQLPOINTER)SQL_OV_ODBC3, 0);
    SQLAllocHandle(SQL_HANDLE_DBC, made->environment, &made->handle);
    SQLSetConnectAttr(made->handle, SQL_ATTR_LOGIN_TIMEOUT, (SQLPOINTER)5, 0);
    if (!SQL_SUCCEEDED(SQLDriverConnect(made->handle, NULL, (SQLCHAR *)DATABASE, SQL_NTS, NULL, 0, NULL,
                                        SQL_DRIVER_NOPROMPT))) {
        failed(report, SQL_HANDLE_DBC, made->handle, 503);
        report->status = 503;
        SQLFreeHandle(SQL_HANDLE_DBC, made->handle);
        SQLFreeHandle(SQL_HANDLE_ENV, made->environment);
        free(made);
        return NULL;
    }
    if (PREPARES[0] != '\0') {
        SQLHSTMT asked;
        SQLRETURN code = SQLAllocHandle(SQL_HANDLE_STMT, made->handle, &asked);
        if (SQL_SUCCEEDED(code)) {
            code = SQLExecDirect(asked, (SQLCHAR *)PREPARES, SQL_NTS);
            SQLFreeHandle(SQL_HANDLE_STMT, asked);
        }
        /* A statement of a visitor must not run on a connection that can write */
        if (!SQL_SUCCEEDED(code) && code != SQL_NO_DATA) {
            report_fail(report, 503, "the connection cannot be made read-only");
            db_close(made);
            return NULL;
        }
    }
    return made;
}

int db_run(struct connection *connection, struct report *report)
{
    int dynamic = report->statement[0] != '\0', done = DONE;
    SQLHSTMT asked;
    SQLSMALLINT columns = 0;
    SQLLEN length, number_length;
    SQLBIGINT total;
    SQLCHAR address[256];
    SQLRETURN code;

    if (!SQL_SUCCEEDED(SQLAllocHandle(SQL_HANDLE_STMT, connection->handle, &asked)))
        return failed(report, SQL_HANDLE_DBC, connection->handle, 500);
    if (dynamic) {
        code = SQLExecDirect(asked, (SQLCHAR *)report->statement, SQL_NTS);
    } else {
        code = SQLPrepare(asked, (SQLCHAR *)STATEMENT, SQL_NTS);
        if (SQL_SUCCEEDED(code))
            code = SQLExecute(asked);
    }
    if (!SQL_SUCCEEDED(code)) {
        done = failed(report, SQL_HANDLE_STMT, asked, 500);
    } else if (!SQL_SUCCEEDED(SQLNumResultCols(asked, &columns)) || columns != 2) {
        done = report_fail(report, 500, "the statement does not select a text and a number");
    } else {
        SQLBindCol(asked, 1, SQL_C_CHAR, address, sizeof address, &length);
        SQLBindCol(asked, 2, SQL_C_SBIGINT, &total, sizeof total, &number_length);
        report_table(report);
        while (SQL_SUCCEEDED(code = SQLFetch(asked)))
            report_row(report, length == SQL_NULL_DATA ? "" : (char *)address,
                       number_length == SQL_NULL_DATA ? 0 : (long long)total);
        report_table_end(report);
        if (code != SQL_NO_DATA)
            done = failed(report, SQL_HANDLE_STMT, asked, 500);
    }
    SQLFreeHandle(SQL_HANDLE_STMT, asked);
    return done;
}

void db_close(struct connection *connection)
{
    SQLDisconnect(connection->handle);
    SQLFreeHandle(SQL_HANDLE_DBC, connection->handle);
    SQLFreeHandle(SQL_HANDLE_ENV, connection->environment);
    free(connection);
}
