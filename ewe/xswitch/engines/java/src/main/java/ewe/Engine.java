package ewe;

import java.nio.file.Path;
import java.util.EnumSet;
import org.eclipse.jetty.fcgi.server.ServerFCGIConnectionFactory;
import org.eclipse.jetty.http.UriCompliance;
import org.eclipse.jetty.server.HttpConfiguration;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.unixdomain.server.UnixDomainServerConnector;
import org.eclipse.jetty.util.thread.QueuedThreadPool;

/**
 * The Java engine of X-Switch: Jetty with its FastCGI connector, for the web applications of one user.
 *
 * <p>X-Switch passes it a listening Unix socket as descriptor 0, and a directory for compiled pages as
 * java.io.tmpdir; descriptor 2 is the log. The engine ends when X-Switch kills it.
 */
public final class Engine {
    private static final int MAX_THREADS = 20; // they count towards the user's limit on processes, which may be low

    public static void main(String[] arguments) throws Exception {
        QueuedThreadPool threads = new QueuedThreadPool(MAX_THREADS, 2);
        threads.setReservedThreads(0);
        threads.setName("engine");
        Server server = new Server(threads);

        HttpConfiguration configuration = new HttpConfiguration();
        configuration.setSendServerVersion(false);
        configuration.setSendXPoweredBy(false);
        configuration.setSendDateHeader(false); // the web server sets it
        // X-Switch has decoded the path, refused dot segments, and encoded the path again (webapp.py). Each path
        // therefore has one meaning, also where Jetty would see several.
        configuration.setUriCompliance(new UriCompliance("X-Switch", EnumSet.of(
                UriCompliance.Violation.AMBIGUOUS_EMPTY_SEGMENT,
                UriCompliance.Violation.AMBIGUOUS_PATH_ENCODING,
                UriCompliance.Violation.AMBIGUOUS_PATH_PARAMETER)));
        // No separate thread accepts connections: one selector does everything.
        UnixDomainServerConnector connector = new UnixDomainServerConnector(
                server, null, null, null, 0, 1, new ServerFCGIConnectionFactory(configuration));
        connector.setInheritChannel(true);
        connector.setIdleTimeout(0); // X-Switch has its own timeouts
        server.addConnector(connector);

        server.setHandler(new Applications(Path.of(System.getProperty("java.io.tmpdir"))));
        try {
            server.start();
        } catch (Throwable fault) { // running threads would keep the process alive
            fault.printStackTrace();
            System.exit(1);
        }
        server.join();
    }
}
