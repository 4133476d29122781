package ewe;

import jakarta.servlet.RequestDispatcher;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.eclipse.jetty.ee10.servlet.ErrorPageErrorHandler;
import org.eclipse.jetty.ee10.servlet.ServletContextRequest;
import org.eclipse.jetty.ee10.webapp.WebAppContext;
import org.eclipse.jetty.http.HttpCookie;
import org.eclipse.jetty.http.HttpStatus;
import org.eclipse.jetty.server.AllowedResourceAliasChecker;
import org.eclipse.jetty.server.Handler;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.handler.GracefulHandler;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A web application: deployed at its first request, and again when its classes or descriptors have changed. */
final class Application {
    private static final Logger LOG = LoggerFactory.getLogger(Application.class);
    private static final long LOOK = TimeUnit.SECONDS.toNanos(1); // between two looks at its files
    private static final long GRACE = 10; // seconds that the requests of a version that is replaced have to end

    private final Server server;
    private final Path directory;
    private final String context;
    private final Path work;
    private GracefulHandler handler; // null: it could not be deployed
    private Map<Path, String> deployed; // the files of the version that is
    private long looked;

    Application(Server server, Path directory, String context, Path work) {
        this.server = server;
        this.directory = directory;
        this.context = context;
        this.work = work;
    }

    /** Return what answers requests, null if it cannot be deployed as it is. Others wait while it is deployed. */
    synchronized Handler handler() {
        long now = System.nanoTime();
        if (deployed == null || now - looked > LOOK) {
            looked = now;
            try {
                Map<Path, String> files = files();
                if (!files.equals(deployed)) {
                    deployed = files;
                    replace(deploy());
                }
            } catch (IOException | UncheckedIOException moving) {
                LOG.warn("{} cannot be read just now: {}", directory, moving.toString());
            }
        }
        return handler;
    }

    /** What the classes and the descriptors are: each file with its time and size. JSPs are Jasper's business. */
    private Map<Path, String> files() throws IOException {
        Map<Path, String> found = new TreeMap<>();
        Path inf = directory.resolve("WEB-INF");
        try (Stream<Path> descriptors = Files.list(inf).filter(path -> path.toString().endsWith(".xml"));
                Stream<Path> classes = below(inf.resolve("classes"));
                Stream<Path> libraries = below(inf.resolve("lib"))) {
            Stream.of(descriptors, classes, libraries).flatMap(paths -> paths).forEach(path -> {
                try {
                    BasicFileAttributes file = Files.readAttributes(path, BasicFileAttributes.class);
                    if (file.isRegularFile()) {
                        found.put(path, file.lastModifiedTime() + " " + file.size() + " " + file.fileKey());
                    }
                } catch (IOException gone) {
                    // between the list and the look
                }
            });
        }
        return found;
    }

    private static Stream<Path> below(Path directory) throws IOException {
        return Files.isDirectory(directory) ? Files.walk(directory.toRealPath()) : Stream.empty();
    }

    private GracefulHandler deploy() {
        WebAppContext application = new WebAppContext();
        GracefulHandler graceful = new GracefulHandler(application);
        try {
            application.setContextPath(context);
            application.setWar(directory.toString());
            application.setDefaultsDescriptor(
                    Application.class.getResource("/webdefault.xml").toString());
            application.setTempDirectory(Files.createTempDirectory(work, "application-").toFile());
            application.setThrowUnavailableOnStartupException(true);
            application.setAliasChecks(List.of(new AllowedResourceAliasChecker(application))); // no link leads out
            application.setErrorHandler(new Errors());
            application.getServletHandler().setDecodeAmbiguousURIs(true); // see Engine
            application.getSessionHandler().setHttpOnly(true);
            application.getSessionHandler().setSameSite(HttpCookie.SameSite.LAX);
            graceful.setServer(server);
            graceful.start();
            return graceful;
        } catch (Throwable fault) { // an Error too, which a class of the application may be
            LOG.warn("{} cannot be deployed", directory, fault);
            stop(graceful);
            return null;
        }
    }

    /** Take a new version; the one before it ends with the last of its requests. */
    private void replace(GracefulHandler next) {
        GracefulHandler before = handler;
        handler = next;
        if (before != null) { // not at once: a request may be on its way into it
            CompletableFuture.delayedExecutor(LOOK, TimeUnit.NANOSECONDS).execute(() -> before.shutdown()
                    .orTimeout(GRACE, TimeUnit.SECONDS)
                    .whenComplete((done, late) -> stop(before)));
        }
    }

    private static void stop(GracefulHandler handler) {
        try {
            handler.stop();
        } catch (Exception fault) {
            LOG.warn("it does not stop", fault);
        }
    }

    /** Error pages without what an exception says: that is for the log. */
    private static final class Errors extends ErrorPageErrorHandler {
        Errors() {
            setShowStacks(false);
            setShowServlet(false);
        }

        @Override
        protected void generateAcceptableResponse(ServletContextRequest base, HttpServletRequest request,
                HttpServletResponse response, int code, String message) throws IOException {
            if (request.getAttribute(RequestDispatcher.ERROR_EXCEPTION) != null) {
                request.removeAttribute(RequestDispatcher.ERROR_EXCEPTION);
                message = HttpStatus.getMessage(code);
            }
            super.generateAcceptableResponse(base, request, response, code, message);
        }
    }
}
