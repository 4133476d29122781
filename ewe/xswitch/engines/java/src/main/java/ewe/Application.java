package ewe;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.eclipse.jetty.server.Handler;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.handler.GracefulHandler;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A web application: deployed at its first request, and again when its classes or descriptors have changed. */
final class Application {
    private static final Logger LOG = LoggerFactory.getLogger(Application.class);
    private static final long CHECK_NS = TimeUnit.SECONDS.toNanos(1); // between two checks of its files
    private static final long GRACE_S = 10; // in which the requests of a replaced version must end

    private final Server server;
    private final Deployers deployers;
    private final Path directory;
    private final String context;
    private final Path work;
    private GracefulHandler handler; // null: the application could not be deployed
    private Map<Path, String> deployed; // the files of the version that was deployed last, also if that failed
    private long checkedAtNs;

    Application(Server server, Deployers deployers, Path directory, String context, Path work) {
        this.server = server;
        this.deployers = deployers;
        this.directory = directory;
        this.context = context;
        this.work = work;
    }

    /** Return the handler of requests, null if the application cannot be deployed. Callers wait meanwhile. */
    synchronized Handler handler() {
        long now = System.nanoTime();
        if (deployed == null || now - checkedAtNs > CHECK_NS) {
            checkedAtNs = now;
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

    /** Return the state of classes and descriptors: each file with its time and size. Jasper checks the JSPs. */
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
                    // removed between the listing and the check
                }
            });
        }
        return found;
    }

    private static Stream<Path> below(Path directory) throws IOException {
        return Files.isDirectory(directory) ? Files.walk(directory.toRealPath()) : Stream.empty();
    }

    private GracefulHandler deploy() {
        GracefulHandler graceful = new GracefulHandler();
        ClassLoader before = Thread.currentThread().getContextClassLoader();
        try {
            Deployer deployer = deployers.of(directory);
            // Jetty finds the parts of its module through this loader.
            Thread.currentThread().setContextClassLoader(deployer.getClass().getClassLoader());
            graceful.setHandler(deployer.prepare(
                    directory, context, Files.createTempDirectory(work, "application-").toFile()));
            graceful.setServer(server);
            graceful.start();
            return graceful;
        } catch (Throwable fault) { // also an Error, which a class of the application may throw
            LOG.warn("{} cannot be deployed", directory, fault);
            stop(graceful);
            return null;
        } finally {
            Thread.currentThread().setContextClassLoader(before);
        }
    }

    /** Return whether the application has been removed. */
    boolean isGone() {
        return !Files.isDirectory(directory.resolve("WEB-INF"));
    }

    /** Stop the application, which has been removed, once its running requests have ended. */
    synchronized void end() {
        deployed = null;
        replace(null);
    }

    /**
     * Use a new version; null: there is none. The old version ends with the last of its requests, or after GRACE_S.
     *
     * <p>The old version is shut down only after CHECK_NS: handler() may just have returned it for a request.
     */
    private void replace(GracefulHandler next) {
        GracefulHandler before = handler;
        handler = next;
        if (before != null) {
            CompletableFuture.delayedExecutor(CHECK_NS, TimeUnit.NANOSECONDS).execute(() -> before.shutdown()
                    .orTimeout(GRACE_S, TimeUnit.SECONDS)
                    .whenComplete((done, late) -> stop(before)));
        }
    }

    private void stop(GracefulHandler version) {
        try {
            version.stop();
        } catch (Exception fault) {
            LOG.warn("a version of {} does not stop", directory, fault);
        }
    }
}
