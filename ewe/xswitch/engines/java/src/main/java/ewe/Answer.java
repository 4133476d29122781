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
 * <p>Jetty writes a line break in a field as a space where it speaks HTTP, but over FastCGI as it is: what a servlet
 * takes from a visitor for a field could be a field more, or a body. And where a write fails, since nobody reads the
 * answer any more, it keeps the connection, and a request that never ends: then the connection is closed.
 */
final class Answer extends Response.Wrapper {
    private final HttpFields.Mutable headers;

    Answer(Request request, Response response) {
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
