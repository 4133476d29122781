package ewe;

import java.io.IOException;
import java.nio.ByteBuffer;
import org.eclipse.jetty.http.HttpField;
import org.eclipse.jetty.http.HttpFields;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Response;
import org.eclipse.jetty.util.Callback;

/**
 * A response over FastCGI, as safe as over HTTP.
 *
 * <p>Over HTTP, Jetty replaces a line break in a field by a space. Over FastCGI it writes the line break as it is:
 * if a servlet puts a visitor's text into a field, the visitor could add a field, or a body. This class removes
 * line breaks. And when a write fails because the reader has closed the connection, Jetty keeps the connection, and
 * the request never ends: this class then closes the connection.
 */
final class SafeResponse extends Response.Wrapper {
    private final HttpFields.Mutable headers;

    SafeResponse(Request request, Response response) {
        super(request, response);
        headers = new HttpFields.Mutable.Wrapper(response.getHeaders()) {
            @Override
            public HttpField onAddField(HttpField field) {
                return oneLine(field);
            }

            @Override
            public HttpField onReplaceField(HttpField before, HttpField field) {
                return oneLine(field);
            }
        };
    }

    @Override
    public HttpFields.Mutable getHeaders() {
        return headers;
    }

    @Override
    public void write(boolean last, ByteBuffer content, Callback callback) {
        super.write(last, content, Callback.from(callback::succeeded, fault -> {
            callback.failed(fault);
            if (fault instanceof IOException) {
                getRequest().getConnectionMetaData().getConnection().getEndPoint().close();
            }
        }));
    }

    private static HttpField oneLine(HttpField field) {
        if (field == null || !(breaks(field.getName()) || breaks(field.getValue()))) {
            return field;
        }
        String value = field.getValue();
        return new HttpField(
                field.getName().replaceAll("[\r\n:]", "?"), value == null ? null : value.replaceAll("[\r\n]", " "));
    }

    private static boolean breaks(String text) {
        return text != null && (text.indexOf('\r') >= 0 || text.indexOf('\n') >= 0);
    }
}
