package ewe;

import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.eclipse.jetty.http.HttpStatus;
import org.eclipse.jetty.server.Handler;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Response;
import org.eclipse.jetty.util.Callback;

/**
 * Hands each request to the web application that it belongs to.
 *
 * <p>X-Switch says which one that is: XSWITCH_APPLICATION is its directory, XSWITCH_CONTEXT its path in URLs. All
 * parameters of a FastCGI request are attributes of Jetty's request.
 */
final class Applications extends Handler.Abstract {
    private final Path work;
    private final Map<String, Application> applications = new ConcurrentHashMap<>();

    /** work: a directory for what is compiled and uploaded. */
    Applications(Path work) {
        this.work = work;
    }

    @Override
    public boolean handle(Request request, Response response, Callback callback) throws Exception {
        String directory = (String) request.getAttribute("XSWITCH_APPLICATION");
        String context = (String) request.getAttribute("XSWITCH_CONTEXT");
        if (directory == null) { // a script, for which somebody has named this engine
            Response.writeError(request, response, callback, HttpStatus.INTERNAL_SERVER_ERROR_500);
            return true;
        }
        Application application = applications.computeIfAbsent(
                context + "\n" + directory,
                key -> new Application(getServer(), Path.of(directory), context, work));
        Handler handler = application.handler();
        if (handler == null) {
            Response.writeError(request, response, callback, HttpStatus.INTERNAL_SERVER_ERROR_500);
            return true;
        }
        Request visited = new Visited(request);
        return handler.handle(visited, new Answer(visited, response), callback);
    }
}
