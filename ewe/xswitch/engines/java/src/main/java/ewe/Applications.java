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
 * Passes each request to its web application.
 *
 * <p>X-Switch names the application: XSWITCH_APPLICATION is its directory, XSWITCH_CONTEXT its path in URLs. All
 * parameters of a FastCGI request are attributes of Jetty's request.
 */
final class Applications extends Handler.Abstract {
    private final Path work;
    private final Deployers deployers = new Deployers();
    private final Map<String, Application> applications = new ConcurrentHashMap<>();

    /** work: a directory for compiled pages and uploads. */
    Applications(Path work) {
        this.work = work;
    }

    @Override
    public boolean handle(Request request, Response response, Callback callback) throws Exception {
        String directory = (String) request.getAttribute("XSWITCH_APPLICATION");
        String context = (String) request.getAttribute("XSWITCH_CONTEXT");
        if (directory == null) { // a script, for which the settings or the web server name this engine
            Response.writeError(request, response, callback, HttpStatus.INTERNAL_SERVER_ERROR_500);
            return true;
        }
        String name = context + "\n" + directory;
        if (!applications.containsKey(name)) {
            endRemoved();
        }
        Application application = applications.computeIfAbsent(
                name, key -> new Application(getServer(), deployers, Path.of(directory), context, work));
        Handler handler = application.handler();
        if (handler == null) {
            Response.writeError(request, response, callback, HttpStatus.INTERNAL_SERVER_ERROR_500);
            return true;
        }
        Request visited = new VisitorRequest(request);
        return handler.handle(visited, new SafeResponse(visited, response), callback);
    }

    /** End the applications whose directories have been removed, such as old versions of a package. */
    private void endRemoved() {
        applications.forEach((name, application) -> {
            if (application.isGone() && applications.remove(name, application)) {
                application.end();
            }
        });
    }
}
