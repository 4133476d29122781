import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.Driver;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Locale;
import java.util.Properties;

/**
 * Answers with the result of a statement as an HTML table, over a new connection for each request.
 *
 * <p>web.xml names the class of the driver, the database's address and the statement. Two headers tell the ms that this
 * thread took to connect (con) and to have the table (ret), of its CPU and by the clock (con-wall, ret-wall).
 */
public class Report extends HttpServlet {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private transient Driver driver;
    private String url;
    private String statement;

    @Override
    public void init() throws ServletException {
        url = getInitParameter("url");
        statement = getInitParameter("statement");
        try {
            // DriverManager would not find a driver of an application that was loaded after the JVM's start
            driver = (Driver) Class.forName(getInitParameter("driver")).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException reason) {
            throw new ServletException(reason);
        }
    }

    @Override
    protected void doGet(HttpServletRequest request, HttpServletResponse response)
            throws IOException, ServletException {
        StringBuilder page = new StringBuilder(8192);
        long[] began = now();
        long[] connected;
        try (Connection connection = driver.connect(url, new Properties())) {
            connected = now();
            try (Statement asked = connection.createStatement(); ResultSet rows = asked.executeQuery(statement)) {
                write(rows, page);
            }
        } catch (SQLException reason) {
            throw new ServletException(reason);
        }
        byte[] body = page.toString().getBytes(StandardCharsets.UTF_8);
        long[] ended = now();
        response.addHeader("Server-Timing", times("", 0, began, connected, ended));
        response.addHeader("Server-Timing", times("-wall", 1, began, connected, ended));
        response.setContentType("text/html; charset=utf-8");
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
    }

    /** Return the ns of this thread's CPU, and those of the clock. */
    private static long[] now() {
        return new long[] {THREADS.getCurrentThreadCpuTime(), System.nanoTime()};
    }

    private static String times(String kind, int clock, long[] began, long[] connected, long[] ended) {
        double con = (connected[clock] - began[clock]) / 1e6;
        double ret = (ended[clock] - connected[clock]) / 1e6;
        return String.format(Locale.ROOT, "con%s;dur=%.3f, ret%s;dur=%.3f", kind, con, kind, ret);
    }

    /** Write what the database daemon's layout TABLE writes. */
    private static void write(ResultSet rows, StringBuilder page) throws SQLException {
        ResultSetMetaData columns = rows.getMetaData();
        int count = columns.getColumnCount();
        page.append("<table>\n<thead><tr>");
        for (int column = 1; column <= count; column++) {
            page.append("<th>").append(escaped(columns.getColumnLabel(column))).append("</th>");
        }
        page.append("</tr></thead>\n<tbody>\n");
        while (rows.next()) {
            page.append("<tr>");
            for (int column = 1; column <= count; column++) {
                Object value = rows.getObject(column);
                page.append(value instanceof Number ? "<td class=\"number\">" : "<td>");
                page.append(value == null ? "" : escaped(value.toString())).append("</td>");
            }
            page.append("</tr>\n");
        }
        page.append("</tbody>\n</table>\n");
    }

    private static String escaped(String text) {
        return text.replace("&", "&amp;")
                .replace("<", "&lt;")
                .replace(">", "&gt;")
                .replace("\"", "&quot;")
                .replace("'", "&#x27;");
    }
}
