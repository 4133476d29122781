/* report.h as a CGI program: a connection for each request, since there is a process for each. */
#include "report.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int put(const char *data, size_t length)
{
    while (length > 0) {
        ssize_t done = write(1, data, length);
        if (done < 0)
            return 1;
        data += done;
        length -= (size_t)done;
    }
    return 0;
}

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
