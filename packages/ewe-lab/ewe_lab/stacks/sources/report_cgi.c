/* report.h as a CGI program: a connection for each request, since there is a process for each. */
#include "put.h"
#include "report.h"
#include <stdlib.h>
#include <string.h>

int main(void)
{
    const char *query = getenv("QUERY_STRING");
    struct connection *connection;
    struct report report;
    char head[1024];
    int failed;

    report_begin(&report, query ? query : "", query ? strlen(query) : 0);
    connection = report_connect(&report);
    if (connection != NULL) {
        report_run(&report, connection);
        db_close(connection);
    }
    failed = put(head, report_head(&report, head, sizeof head));
    if (report.status == 200)
        failed = failed || put(report.page, report.length);
    report_end(&report);
    return failed;
}
